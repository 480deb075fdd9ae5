! All-reduces in a Fortran program over any MPI:
!   mpif90 $(pkg-config --variable=prefix unisono)/share/unisono/unisono.f90 \
!     with_mpi.f90 $(pkg-config --libs unisono) && mpirun -n 2 ./a.out

module ranks
  use, intrinsic :: iso_c_binding
  implicit none
contains
  ! The only MPI function that Unisono needs, for its bootstrap.
  integer(c_int) function gather(context, own, all, size_bytes) bind(c)
    include 'mpif.h'
    type(c_ptr), value :: context, own, all
    integer(c_size_t), value :: size_bytes
    character(c_char), pointer :: ours(:), theirs(:)
    integer :: count, size, code
    count = int(size_bytes)
    call MPI_Comm_size(MPI_COMM_WORLD, size, code)
    call c_f_pointer(own, ours, [count])
    call c_f_pointer(all, theirs, [count * size])
    call MPI_Allgather(ours, count, MPI_BYTE, theirs, count, MPI_BYTE, MPI_COMM_WORLD, code)
    gather = code
  end function
end module

program with_mpi
  use unisono
  use ranks
  implicit none
  include 'mpif.h'
  integer, parameter :: count = 1000
  real(c_double), target :: values(count)
  type(c_ptr) :: comm
  integer :: rank, size, code

  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  call MPI_Comm_size(MPI_COMM_WORLD, size, code)
  code = unisono_start(rank, size, c_funloc(gather), c_null_ptr, c_null_ptr, comm)
  if (code /= unisono_ok) error stop 'the ranks did not find each other'

  values = rank + 1
  code = unisono_all_reduce(comm, c_loc(values), int(count, c_size_t), unisono_f64, unisono_sum, c_null_ptr)
  if (code /= unisono_ok .or. any(values /= size * (size + 1) / 2)) error stop 'the sum is wrong'
  print '(a, i0, a, i0, a)', 'rank ', rank, ' of ', size, ': the sum is right'

  call unisono_free(comm)
  call MPI_Finalize(code)
end program
