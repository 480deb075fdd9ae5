! Tests the Fortran module of unisono.h, among processes without MPI. Exits with 0 if all results are right.

program everything
  use unisono
  implicit none
  integer(c_size_t), parameter :: count = 12
  real(c_double), target :: values(count)
  character(5, c_char), target :: ring = 'ring'//c_null_char
  integer(c_size_t), target :: counts(2)
  integer(c_size_t) :: sources(2)
  type(unisono_settings), target :: settings
  type(unisono_call), target :: options
  real(c_double), target :: sent(3, 2), received(3, 2)
  type(c_ptr) :: comm, group, request, memory, sends(2), receives(2)
  real(c_double), pointer :: registered(:)
  integer(c_size_t) :: start, length
  integer(c_int) :: rank, ranks, is_done, list(2), from, code, tag

  settings%timeout_s = 60
  call ok(unisono_start_launched(c_loc(settings), comm))
  rank = unisono_rank(comm)
  ranks = unisono_size(comm)

  ! A collective, with options and without.
  options%algorithm = c_loc(ring)
  values = rank + 1
  call ok(unisono_all_reduce(comm, c_loc(values), count, unisono_f64, unisono_sum, c_loc(options)))
  call check(all(nint(values) == ranks * (ranks + 1) / 2))
  values = rank
  call ok(unisono_broadcast(comm, c_loc(values), count, unisono_f64, ranks - 1, c_null_ptr))
  call check(all(nint(values) == ranks - 1))
  call ok(unisono_own_part(comm, count, start, length))
  call check(start == rank * count / ranks .and. length == count / ranks)

  ! Parts of given sizes, and a count for every pair of ranks: rank 0 has 3 elements and sends all, rank 1 has 9 and sends none.
  counts = [3, 9]
  options%counts = c_loc(counts)
  values = rank
  call ok(unisono_all_gather(comm, c_loc(values), count, unisono_f64, c_loc(options)))
  call check(all(nint(values(:3)) == 0) .and. all(nint(values(4:)) == 1))
  options%counts = c_null_ptr
  values = rank
  counts = [0_c_size_t, merge(3_c_size_t, 0_c_size_t, rank == 0)]
  sources = [merge(3_c_size_t, 0_c_size_t, rank == 1), 0_c_size_t]
  call ok(unisono_all_to_all_v(comm, c_loc(values), counts, c_loc(values(4)), sources, unisono_f64, c_null_ptr))
  call check(nint(values(4)) == 0)

  ! A request.
  values = rank
  call ok(unisono_all_reduce_async(comm, c_loc(values), count, unisono_f64, unisono_max, c_null_ptr, request))
  call ok(unisono_test(request, is_done))
  call ok(unisono_wait(request))
  call check(.not. c_associated(request) .and. all(nint(values) == ranks - 1))

  ! Registered memory, in a group.
  list = [1, 0]
  call ok(unisono_group(comm, list, 2_c_size_t, group))
  call check(unisono_rank(group) == 1 - rank)
  call ok(unisono_alloc(group, 8 * count, memory))
  call c_f_pointer(unisono_address(memory), registered, [count])
  registered = 2
  call ok(unisono_all_reduce(group, c_loc(registered), count, unisono_f64, unisono_product, c_null_ptr))
  call check(all(nint(registered) == 4))
  call unisono_release(memory)
  call unisono_free(group)

  ! A message.
  if (rank == 0) then
    call ok(unisono_send(comm, c_loc(values), count, unisono_f64, 1, c_null_ptr))
  else
    call ok(unisono_receive_any(comm, c_loc(values), count, unisono_f64, from, c_null_ptr))
    call check(from == 0)
  end if

  ! Messages in flight, received in another order than sent.
  do tag = 1, 2
    sent(:, tag) = 10 * rank + tag
    options%tag = tag
    call ok(unisono_send_async(comm, c_loc(sent(1, tag)), 3_c_size_t, unisono_f64, 1 - rank, c_loc(options), sends(tag)))
  end do
  do tag = 2, 1, -1
    options%tag = tag
    call ok(unisono_receive_async(comm, c_loc(received(1, tag)), 3_c_size_t, unisono_f64, 1 - rank, c_loc(options), receives(tag)))
  end do
  call ok(unisono_wait_any(2_c_size_t, receives, from))
  call check(from == 0 .or. from == 1)
  call ok(unisono_wait_all(2_c_size_t, receives))
  call ok(unisono_wait_all(2_c_size_t, sends))
  do tag = 1, 2
    call check(all(nint(received(:, tag)) == 10 * (1 - rank) + tag))
  end do

  ! An error and its text.
  code = unisono_all_reduce(comm, c_loc(values), count, unisono_f64, 77, c_null_ptr)
  call check(code == unisono_error_argument .and. unisono_is_fatal(code) == 0)
  call check(index(unisono_error_text(), '77') > 0)

  ! Shrinking to the live ranks, which are all of them.
  call ok(unisono_shrink(comm))
  call check(unisono_size(comm) == ranks .and. unisono_former_rank(comm, 1) == 1)

  call ok(unisono_barrier(comm, c_null_ptr))
  call unisono_free(comm)
  print '(a)', 'all right'
contains
  subroutine ok(code)
    integer(c_int), intent(in) :: code
    if (code == unisono_ok) return
    print '(a)', unisono_error_text()
    error stop 'a function failed'
  end subroutine

  subroutine check(is_right)
    logical, intent(in) :: is_right
    if (.not. is_right) error stop 'a result is wrong'
  end subroutine
end program
