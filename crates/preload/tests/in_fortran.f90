! Tests the Fortran functions of the module mpi or, with -DMODERN, of mpi_f08.
program in_fortran
#ifdef MODERN
    use mpi_f08
    use, intrinsic :: iso_c_binding
#else
    use mpi
#endif
    implicit none
    integer, parameter :: n = 5000
    double precision :: from(n), to(n), all(n, 64)
    integer :: rank, ranks, error, i, whole(n), gotten(n), counts(64), starts(64), sizes(64)
#ifdef MODERN
    type(MPI_Op) :: op
#else
    integer :: op
#endif
    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    from = [(dble(i + rank), i = 1, n)]
    call MPI_Allreduce(from, to, n, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
    call check(to(n) == dble(n * ranks + ranks * (ranks - 1) / 2), "all-reduce")
    to = from
    call MPI_Allreduce(MPI_IN_PLACE, to, n, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD, error)
    call check(to(n) == dble(n + ranks - 1), "all-reduce in place")
    whole = rank
    call MPI_Bcast(whole, n, MPI_INTEGER, ranks - 1, MPI_COMM_WORLD, error)
    call check(all_are(whole, ranks - 1), "broadcast")
    whole = 1
    if (rank == 0) then
        call MPI_Reduce(MPI_IN_PLACE, whole, n, MPI_INTEGER, MPI_SUM, 0, MPI_COMM_WORLD, error)
        call check(all_are(whole, ranks), "reduce")
    else
        call MPI_Reduce(whole, gotten, n, MPI_INTEGER, MPI_SUM, 0, MPI_COMM_WORLD, error)
    end if
    call MPI_Allgather(from, n, MPI_DOUBLE_PRECISION, all, n, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, error)
    call check(all(1, 1) == 1 .and. all(1, ranks) == dble(ranks), "all-gather")
    call MPI_Alltoall(from, n / ranks, MPI_DOUBLE_PRECISION, to, n / ranks, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, error)
    call check(to(1) == dble(1 + rank * (n / ranks)), "all-to-all")
    call MPI_Gather(from, n, MPI_DOUBLE_PRECISION, all, n, MPI_DOUBLE_PRECISION, ranks - 1, MPI_COMM_WORLD, error)
    call check(rank /= ranks - 1 .or. all(n, 1) == dble(n), "gather")
    all(:, 1:ranks) = spread(from, 2, ranks)
    call MPI_Scatter(all, n, MPI_DOUBLE_PRECISION, to, n, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, error)
    call check(to(n) == dble(n), "scatter")
    counts(1:ranks) = [(n / ranks - i, i = 1, ranks)]
    starts(1:ranks) = [((i - 1) * (n / ranks), i = 1, ranks)]
    sizes(1:ranks) = n / ranks - rank - 1
    call MPI_Alltoallv(from, counts, starts, MPI_DOUBLE_PRECISION, to, sizes, starts, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, error)
    call check(to(starts(ranks) + 1) == dble(1 + starts(rank + 1) + ranks - 1), "exchange")
    call MPI_Gatherv(from, counts(rank + 1), MPI_DOUBLE_PRECISION, to, counts, starts, &
        MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, error)
    call check(rank /= 0 .or. to(starts(ranks) + 1) == dble(ranks), "gather of blocks")
    call MPI_Scatterv(from, counts, starts, MPI_DOUBLE_PRECISION, to, counts(rank + 1), &
        MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, error)
    call check(to(1) == dble(1 + starts(rank + 1)), "scatter of blocks")
    call MPI_Scan(from, to, n, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD, error)
    call check(to(n) == dble(n + rank), "scan")
    call MPI_Exscan(MPI_IN_PLACE, from, n, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD, error)
    call check(rank == 0 .or. from(n) == dble(n + rank - 1), "exclusive scan")
    from = [(dble(i + rank), i = 1, n)]
    call MPI_Op_create(first, .false., op, error)
    call MPI_Allreduce(from, to, n, MPI_DOUBLE_PRECISION, op, MPI_COMM_WORLD, error)
    call check(to(1) == 1 .and. to(n) == dble(n), "operation of the program")
    call MPI_Op_free(op, error)
    call MPI_Barrier(MPI_COMM_WORLD, error)
    call check(error == MPI_SUCCESS, "barrier")
    if (rank == 0) print '(i0, a)', ranks, " ranks: all right"
    call MPI_Finalize(error)

contains

    ! The values of the lower rank.
#ifdef MODERN
    subroutine first(in, inout, count, kind)
        type(c_ptr), value :: in, inout
        integer :: count
        type(MPI_Datatype) :: kind
        double precision, pointer :: lower(:), upper(:)
        call c_f_pointer(in, lower, [count])
        call c_f_pointer(inout, upper, [count])
        if (kind /= MPI_DOUBLE_PRECISION) return
        upper = lower
    end subroutine
#else
    subroutine first(in, inout, count, kind)
        integer :: count, kind
        double precision :: in(count), inout(count)
        if (kind /= MPI_DOUBLE_PRECISION) return
        inout = in
    end subroutine
#endif

    logical function all_are(values, value)
        integer, intent(in) :: values(:), value
        all_are = count(values == value) == size(values)
    end function

    subroutine check(is_right, what)
        logical, intent(in) :: is_right
        character(*), intent(in) :: what
        if (is_right) return
        print '(a, a)', what, " is wrong"
        call MPI_Abort(MPI_COMM_WORLD, 1, error)
    end subroutine
end program
