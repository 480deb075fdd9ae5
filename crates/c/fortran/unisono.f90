! Unisono for Fortran, the functions of unisono.h.
! UPDATE_EXPECT=1 cargo test -p unisono-c --test suite fortran writes it from there.
!
! Compile it with the program, since the format of compiled modules depends on the compiler:
!   mpif90 $(pkg-config --variable=prefix unisono)/share/unisono/unisono.f90 program.f90 $(pkg-config --libs unisono)
!
! Handles and arrays are of type(c_ptr): c_loc(values) for an array with the attribute `target`, c_null_ptr for NULL, c_loc(options)
! for options and settings, and c_loc(text) for a text that ends with c_null_char. A function of the program with bind(c) is
! c_funloc(function). Ranks, the starts of parts and the index of unisono_wait_any count from 0: requests(index + 1) was done.
module unisono
  use, intrinsic :: iso_c_binding
  implicit none
  public

  ! Success.
  integer(c_int), parameter :: unisono_ok = 0
  ! Refused: the library does not support the call.
  integer(c_int), parameter :: unisono_error_unsupported = 1
  ! Refused: a function of the program failed on rank 0.
  integer(c_int), parameter :: unisono_error_on_rank_0 = 2
  ! Refused: the system does not provide the memory.
  integer(c_int), parameter :: unisono_error_memory = 3
  ! Refused: a library is missing or unsuitable.
  integer(c_int), parameter :: unisono_error_library = 4
  ! Refused: the ranks do not find each other.
  integer(c_int), parameter :: unisono_error_launch = 5
  ! Refused: a setting is invalid, or differs between ranks.
  integer(c_int), parameter :: unisono_error_setting = 6
  ! Refused: CUDA's driver returned an error.
  integer(c_int), parameter :: unisono_error_cuda = 8
  ! Refused: NCCL returned an error.
  integer(c_int), parameter :: unisono_error_nccl = 9
  ! Refused: an argument is invalid.
  integer(c_int), parameter :: unisono_error_argument = 50
  ! Lost: another rank did not arrive in time.
  integer(c_int), parameter :: unisono_error_timeout = 101
  ! Lost: ranks made different calls. The text names both.
  integer(c_int), parameter :: unisono_error_mismatch = 102
  ! Lost: another rank freed its communicator.
  integer(c_int), parameter :: unisono_error_left = 103
  ! Lost: another rank failed, or this one did in an earlier call.
  integer(c_int), parameter :: unisono_error_aborted = 104
  ! Lost: this rank failed in the call.
  integer(c_int), parameter :: unisono_error_failed = 105
  ! Lost: the GPU did not finish in time.
  integer(c_int), parameter :: unisono_error_overdue = 106
  ! Lost: other ranks are out of reach, may be alive, and may continue without this one.
  integer(c_int), parameter :: unisono_error_partitioned = 107
  ! Lost: a defect of the library, which its text describes.
  integer(c_int), parameter :: unisono_error_panic = 150
  ! Adds. Integers wrap around.
  integer(c_int), parameter :: unisono_sum = 0
  ! Adds, and divides by the number of ranks.
  integer(c_int), parameter :: unisono_mean = 1
  ! The smaller value; NaN if either is.
  integer(c_int), parameter :: unisono_min = 2
  ! The larger value; NaN if either is.
  integer(c_int), parameter :: unisono_max = 3
  ! Multiplies. Integers wrap around.
  integer(c_int), parameter :: unisono_product = 4
  ! The bits that are set in both integers.
  integer(c_int), parameter :: unisono_bit_and = 5
  ! The bits that are set in either integer.
  integer(c_int), parameter :: unisono_bit_or = 6
  ! The bits that are set in exactly one of the integers.
  integer(c_int), parameter :: unisono_bit_xor = 7
  ! 1 if both integers are nonzero, else 0.
  integer(c_int), parameter :: unisono_logical_and = 8
  ! 1 if either integer is nonzero, else 0.
  integer(c_int), parameter :: unisono_logical_or = 9
  ! 1 if exactly one of the integers is nonzero, else 0.
  integer(c_int), parameter :: unisono_logical_xor = 10
  ! 32-bit float.
  integer(c_int), parameter :: unisono_f32 = 0
  ! 64-bit float.
  integer(c_int), parameter :: unisono_f64 = 1
  ! IEEE 754 half precision.
  integer(c_int), parameter :: unisono_f16 = 2
  ! bfloat16.
  integer(c_int), parameter :: unisono_bf16 = 3
  ! Signed 32-bit integer.
  integer(c_int), parameter :: unisono_i32 = 4
  ! Signed 64-bit integer.
  integer(c_int), parameter :: unisono_i64 = 5
  ! Unsigned 8-bit integer.
  integer(c_int), parameter :: unisono_u8 = 6
  ! Unsigned 32-bit integer.
  integer(c_int), parameter :: unisono_u32 = 7
  ! Unsigned 64-bit integer.
  integer(c_int), parameter :: unisono_u64 = 8

  ! Options of one call. Set all bytes to 0, and then the fields that differ from those of the communicator. A null pointer selects
  ! those of the communicator.
  type, bind(c) :: unisono_call
    ! The algorithm, or NULL. Identical on all ranks.
    type(c_ptr) :: algorithm = c_null_ptr
    ! A name of the call in errors and warnings, or NULL. Identical on all ranks.
    type(c_ptr) :: label = c_null_ptr
    ! The timeout of waits for another rank, in seconds, or 0.
    real(c_double) :: timeout_s = 0
    ! The number of elements of each rank's part, one for each rank, of an all-gather, reduce-scatter, gather or scatter
    ! (`MPI_Allgatherv` and so on), or NULL for parts that differ by at most one element. Identical on all ranks.
    type(c_ptr) :: counts = c_null_ptr
    ! The tag of a message, 0 or more: a receive gets the earliest message of its sender with the same tag. Collectives ignore it.
    integer(c_int) :: tag = 0
  end type

  ! Settings of a world. Set all bytes to 0, and then the fields that differ from the defaults. A null pointer selects the defaults.
  ! Unset fields come from the environment (UNISONO_TIMEOUT_S and others).
  type, bind(c) :: unisono_settings
    ! The algorithm of all calls, such as "ring", or NULL for "auto". Identical on all ranks.
    type(c_ptr) :: algorithm = c_null_ptr
    ! The file that `unisono tune` has written, or NULL. All ranks use rank 0's.
    type(c_ptr) :: tuning = c_null_ptr
    ! The timeout of waits for another rank, in seconds; 0 for the default of 600.
    real(c_double) :: timeout_s = 0
    ! 1: a failure is reported and ends all processes of the job, for which the library uses a thread and signal handlers. 0:
    ! functions return errors, and the library starts no thread, except for non-blocking calls.
    integer(c_int) :: end_job = 0
    ! 1: the UNISONO_... variables of the environment are ignored.
    integer(c_int) :: ignore_environment = 0
    ! 1: UNISONO_METRICS and UNISONO_TRACE have no effect on this world. An additional world needs it if its ranks have other
    ! numbers
    ! than in the first one, since a process would write to the files of another one.
    integer(c_int) :: unobserved = 0
  end type

  abstract interface
    ! Reduces `right` into `left`, element by element: `left[i] = left[i] ∘ right[i]`, for `count` elements. Returns 0, or
    ! anything else if it failed, which loses the communicator: the call returns UNISONO_ERROR_FAILED on this rank. It is called on
    ! the thread that makes the call, or on the communicator's thread for a non-blocking call; and on several threads at once if
    ! several communicators are used at once.
    integer(c_int) function unisono_reduce_function(context, left, right, count) bind(c)
      import
      type(c_ptr), value :: context
      type(c_ptr), value :: left
      type(c_ptr), value :: right
      integer(c_size_t), value :: count
    end function

    ! A callback that runs during waits. It returns NULL to continue the wait, or the cause for which the wait ends.
    type(c_ptr) function unisono_look_function() bind(c)
      import
    end function

    ! Gathers `size_bytes` bytes from every rank, rank 0's first, on all ranks. `own` has the bytes of this rank, and `all` has
    ! space for those of all ranks. Returns 0, or another number if it failed. With MPI it is one line:
    !
    !     return MPI_Allgather(own, size_bytes, MPI_BYTE, all, size_bytes, MPI_BYTE, *(MPI_Comm *)context);
    integer(c_int) function unisono_gather_function(context, own, all, size_bytes) bind(c)
      import
      type(c_ptr), value :: context
      type(c_ptr), value :: own
      type(c_ptr), value :: all
      integer(c_size_t), value :: size_bytes
    end function

    ! Stores `size_bytes` bytes under a key, for the ranks of all processes. Returns 0, or another number if it failed.
    integer(c_int) function unisono_set_function(context, key, value, size_bytes) bind(c)
      import
      type(c_ptr), value :: context
      type(c_ptr), value :: key
      type(c_ptr), value :: value
      integer(c_size_t), value :: size_bytes
    end function

    ! Waits until a key is set, copies its bytes to `value`, which has space for `*size_bytes`, and stores their number in
    ! `*size_bytes`. Returns 0, or another number if it failed. It must not wait for ever.
    integer(c_int) function unisono_get_function(context, key, value, size_bytes) bind(c)
      import
      type(c_ptr), value :: context
      type(c_ptr), value :: key
      type(c_ptr), value :: value
      integer(c_size_t), intent(inout) :: size_bytes
    end function
  end interface

  interface
    ! Leaves the reduction of all arrays on every rank, bitwise identical.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_all_reduce(comm, data, count, dtype, op, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_all_reduce`. Do not access the array until `unisono_wait` has returned.
    !
    ! Conditions:
    ! As the blocking form; the pointer to the request must be valid.
    integer(c_int) function unisono_all_reduce_async(comm, data, count, dtype, op, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Leaves on every rank its own part of the reduction of all arrays (`unisono_own_part`); the rest of the array is undefined.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_reduce_scatter(comm, data, count, dtype, op, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_reduce_scatter`. Do not access the array until `unisono_wait` has returned.
    !
    ! Conditions:
    ! As the blocking form; the pointer to the request must be valid.
    integer(c_int) function unisono_reduce_scatter_async(comm, data, count, dtype, op, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Leaves on every rank the reduction of the arrays of all ranks up to and including itself: `MPI_Scan`.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_scan(comm, data, count, dtype, op, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_scan`. Do not access the array until `unisono_wait` has returned.
    !
    ! Conditions:
    ! As the blocking form; the pointer to the request must be valid.
    integer(c_int) function unisono_scan_async(comm, data, count, dtype, op, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Leaves on every rank the reduction of the arrays of all ranks before itself: `MPI_Exscan`. Rank 0's array is undefined.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_exclusive_scan(comm, data, count, dtype, op, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_exclusive_scan`. Do not access the array until `unisono_wait` has returned.
    !
    ! Conditions:
    ! As the blocking form; the pointer to the request must be valid.
    integer(c_int) function unisono_exclusive_scan_async(comm, data, count, dtype, op, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Every rank contributes its own part of the array (`unisono_own_part`) and ends with all parts.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_all_gather(comm, data, count, dtype, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_all_gather`. Do not access the array until `unisono_wait` has returned.
    !
    ! Conditions:
    ! As the blocking form; the pointer to the request must be valid.
    integer(c_int) function unisono_all_gather_async(comm, data, count, dtype, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Copies the root's array to every rank. The array must be writable on the root too: in a world of threads, another rank may
    ! write to it, without changing its values.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_broadcast(comm, data, count, dtype, root, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: root
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_broadcast`. Do not access the array until `unisono_wait` has returned.
    !
    ! Conditions:
    ! As the blocking form; the pointer to the request must be valid.
    integer(c_int) function unisono_broadcast_async(comm, data, count, dtype, root, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: root
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Leaves the reduction of all arrays on the root; the other arrays are undefined.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_reduce(comm, data, count, dtype, op, root, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      integer(c_int), value :: root
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_reduce`. Do not access the array until `unisono_wait` has returned.
    !
    ! Conditions:
    ! As the blocking form; the pointer to the request must be valid.
    integer(c_int) function unisono_reduce_async(comm, data, count, dtype, op, root, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      integer(c_int), value :: root
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Every rank contributes its own part of the array (`unisono_own_part`), and the root ends with all parts.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_gather(comm, data, count, dtype, root, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: root
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_gather`. Do not access the array until `unisono_wait` has returned.
    !
    ! Conditions:
    ! As the blocking form; the pointer to the request must be valid.
    integer(c_int) function unisono_gather_async(comm, data, count, dtype, root, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: root
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Leaves on every rank its own part of the root's array (`unisono_own_part`); except on the root, the rest is undefined.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_scatter(comm, data, count, dtype, root, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: root
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_scatter`. Do not access the array until `unisono_wait` has returned.
    !
    ! Conditions:
    ! As the blocking form; the pointer to the request must be valid.
    integer(c_int) function unisono_scatter_async(comm, data, count, dtype, root, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: root
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Exchanges one block with every rank: block j of rank i becomes block i of rank j. The number of elements must be a multiple of
    ! the number of ranks.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_all_to_all(comm, data, count, dtype, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_all_to_all`. Do not access the array until `unisono_wait` has returned.
    !
    ! Conditions:
    ! As the blocking form; the pointer to the request must be valid.
    integer(c_int) function unisono_all_to_all_async(comm, data, count, dtype, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Leaves the reduction of all arrays in GPU memory on every rank, ordered on the stream.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements in GPU memory that lives, as the stream does, until the stream is
    ! done, and the options null or valid.
    integer(c_int) function unisono_gpu_all_reduce(comm, data, count, dtype, op, stream, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      type(c_ptr), value :: stream
      type(c_ptr), value :: options
    end function

    ! Leaves the reduction of all arrays in GPU memory on the root, ordered on the stream; the other arrays are undefined.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements in GPU memory that lives, as the stream does, until the stream is
    ! done, and the options null or valid.
    integer(c_int) function unisono_gpu_reduce(comm, data, count, dtype, op, root, stream, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      integer(c_int), value :: root
      type(c_ptr), value :: stream
      type(c_ptr), value :: options
    end function

    ! Copies the root's array in GPU memory to every rank, ordered on the stream.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements in GPU memory that lives, as the stream does, until the stream is
    ! done, and the options null or valid.
    integer(c_int) function unisono_gpu_broadcast(comm, data, count, dtype, root, stream, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: root
      type(c_ptr), value :: stream
      type(c_ptr), value :: options
    end function

    ! Leaves on every rank its own part of the reduction of all arrays in GPU memory (`unisono_own_part`), ordered on the stream;
    ! the rest of the array is undefined.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements in GPU memory that lives, as the stream does, until the stream is
    ! done, and the options null or valid.
    integer(c_int) function unisono_gpu_reduce_scatter(comm, data, count, dtype, op, stream, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      type(c_ptr), value :: stream
      type(c_ptr), value :: options
    end function

    ! Every rank contributes its own part of the array in GPU memory (`unisono_own_part`) and ends with all parts, ordered on the
    ! stream.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements in GPU memory that lives, as the stream does, until the stream is
    ! done, and the options null or valid.
    integer(c_int) function unisono_gpu_all_gather(comm, data, count, dtype, stream, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      type(c_ptr), value :: stream
      type(c_ptr), value :: options
    end function

    ! Sends to every rank a part of one array, and receives a part of another array from each (`MPI_Alltoallv`, with contiguous
    ! parts in the order of ranks). `sent_counts[j]` is the number of elements for rank j, and `received_counts[i]` the number from
    ! rank i; both may be 0. Rank j must expect as many elements from this rank. The arrays must not overlap.
    !
    ! Conditions:
    ! The handle must be live, the counts one for each rank, the arrays of the sums of these counts, and the options null or valid.
    integer(c_int) function unisono_all_to_all_v(comm, sent, sent_counts, received, received_counts, dtype, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: sent
      integer(c_size_t), intent(in) :: sent_counts(*)
      type(c_ptr), value :: received
      integer(c_size_t), intent(in) :: received_counts(*)
      integer(c_int), value :: dtype
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_all_to_all_v`. Do not access either array until `unisono_wait` has returned. The
    ! counts are copied.
    !
    ! Conditions:
    ! As the blocking form; the pointer to the request must be valid.
    integer(c_int) function unisono_all_to_all_v_async( &
      comm, sent, sent_counts, received, received_counts, dtype, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: sent
      integer(c_size_t), intent(in) :: sent_counts(*)
      type(c_ptr), value :: received
      integer(c_size_t), intent(in) :: received_counts(*)
      integer(c_int), value :: dtype
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Returns once all ranks have called it.
    !
    ! Conditions:
    ! The handle must be live, and the options null or valid.
    integer(c_int) function unisono_barrier(comm, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_barrier`.
    !
    ! Conditions:
    ! The handle must be live, the options null or valid, and the pointer to the request valid.
    integer(c_int) function unisono_barrier_async(comm, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Frees a communicator. Other ranks that still wait for this one get UNISONO_ERROR_LEFT. Wait for its requests first, and free
    ! its groups and memory before or after. NULL is ignored. In a forked child, only the handle is discarded, and that of the
    ! parent remains valid.
    !
    ! Conditions:
    ! The handle must be null or live, and not used afterwards.
    subroutine unisono_free(comm) bind(c)
      import
      type(c_ptr), value :: comm
    end subroutine

    ! Returns the number of this rank, from 0; -1 if the handle is not valid in this process.
    !
    ! Conditions:
    ! The handle must be null or live.
    integer(c_int) function unisono_rank(comm) bind(c)
      import
      type(c_ptr), value :: comm
    end function

    ! Returns the number of ranks; -1 if the handle is not valid in this process.
    !
    ! Conditions:
    ! The handle must be null or live.
    integer(c_int) function unisono_size(comm) bind(c)
      import
      type(c_ptr), value :: comm
    end function

    ! Returns the number of nodes that the ranks are on; -1 if the handle is not valid in this process.
    !
    ! Conditions:
    ! The handle must be null or live.
    integer(c_int) function unisono_nodes(comm) bind(c)
      import
      type(c_ptr), value :: comm
    end function

    ! Returns the part of an array of `count` elements that belongs to this rank in a reduce-scatter, scatter, gather or all-gather:
    ! `length` elements from `start` on.
    !
    ! Conditions:
    ! The handle must be null or live, and the pointers null or valid for writing.
    integer(c_int) function unisono_own_part(comm, count, start, length) bind(c)
      import
      type(c_ptr), value :: comm
      integer(c_size_t), value :: count
      integer(c_size_t), intent(out) :: start
      integer(c_size_t), intent(out) :: length
    end function

    ! Declares that this rank cannot continue: other ranks get UNISONO_ERROR_ABORTED with the cause instead of waiting for it.
    !
    ! Conditions:
    ! The handle must be null or live, and the cause null or a string.
    integer(c_int) function unisono_fail(comm, cause) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: cause
    end function

    ! Creates a compressor of an array of `tensors` matrices, row-major and one after the other. A vector has one column. The format
    ! is "int8", "int4", "onebit", "topk:FRACTION", "threshold:MAGNITUDE" or "powersgd:RANK"; the suffix ":stochastic" of "int8" or
    ! "int4" selects stochastic rounding. All ranks call it, with the same arguments.
    !
    ! Conditions:
    ! The handle must be live, the format a string, the lists of `tensors` sizes each, and the pointer valid for writing.
    integer(c_int) function unisono_compressor_create(comm, format, rows, columns, tensors, compressor) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: format
      integer(c_size_t), intent(in) :: rows(*)
      integer(c_size_t), intent(in) :: columns(*)
      integer(c_size_t), value :: tensors
      type(c_ptr), intent(out) :: compressor
    end function

    ! Leaves the sum of all ranks' arrays of `count` floats, the number of elements of the tensors, on every rank, with the same
    ! bits. All ranks call it. `was_finite`, unless it is NULL, is set to whether all values were finite. Non-finite values corrupt
    ! the residual.
    !
    ! Conditions:
    ! The handles must be live, the array of `count` floats that the program does not access until the call is done, and the pointer
    ! null or valid for writing.
    integer(c_int) function unisono_compress_all_reduce(comm, compressor, data, count, was_finite) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: compressor
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), intent(out) :: was_finite
    end function

    ! Returns the number of floats that `unisono_compressor_save` writes; 0 for NULL.
    !
    ! Conditions:
    ! The handle must be null or live.
    integer(c_size_t) function unisono_compressor_state_count(compressor) bind(c)
      import
      type(c_ptr), value :: compressor
    end function

    ! Writes the residual of this rank and the state of the encoding, `count` floats as returned by
    ! `unisono_compressor_state_count`. Every rank saves and loads its own.
    !
    ! Conditions:
    ! The handle must be live, and the array of `count` floats.
    integer(c_int) function unisono_compressor_save(compressor, floats, count) bind(c)
      import
      type(c_ptr), value :: compressor
      type(c_ptr), value :: floats
      integer(c_size_t), value :: count
    end function

    ! Restores the state that `unisono_compressor_save` of a compressor with the same arguments wrote.
    !
    ! Conditions:
    ! As `unisono_compressor_save`.
    integer(c_int) function unisono_compressor_load(compressor, floats, count) bind(c)
      import
      type(c_ptr), value :: compressor
      type(c_ptr), value :: floats
      integer(c_size_t), value :: count
    end function

    ! Frees a compressor, before or after its communicator, and not while a call uses it. NULL is ignored.
    !
    ! Conditions:
    ! The handle must be null or live, and not used afterwards.
    subroutine unisono_compressor_free(compressor) bind(c)
      import
      type(c_ptr), value :: compressor
    end subroutine

    ! Returns the text of the last error of a function on this thread; empty if there was none. Valid until the next error on this
    ! thread.
    type(c_ptr) function unisono_last_error() bind(c)
      import
    end function

    ! Returns the rank that failed, according to the last error on this thread; -1 if that is not known.
    integer(c_int) function unisono_failed_rank() bind(c)
      import
    end function

    ! Returns whether an error with this code loses the communicator: 1 if so, otherwise 0.
    integer(c_int) function unisono_is_fatal(code) bind(c)
      import
      integer(c_int), value :: code
    end function

    ! Orders the streams of all ranks: work that is queued on the stream from now on begins when the work that each rank has queued
    ! on its own stream is done. The host does not wait.
    !
    ! Conditions:
    ! The handle must be live, the stream one of the thread's current GPU, and the options null or valid.
    integer(c_int) function unisono_gpu_barrier(comm, stream, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: stream
      type(c_ptr), value :: options
    end function

    ! Waits until the work now queued on the stream is done: with the deadline of a call, and with an error that names the rank if a
    ! rank fails or does not make its calls. Use it in place of `cudaStreamSynchronize`, which would wait for ever.
    !
    ! Conditions:
    ! The handle must be live, the stream one of the thread's current GPU, and the options null or valid.
    integer(c_int) function unisono_gpu_synchronize(comm, stream, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: stream
      type(c_ptr), value :: options
    end function

    ! Splits the ranks into one communicator per color, numbered by key and, among equal keys, by their rank here. A rank with a
    ! negative color is in no group, and gets NULL. All ranks call it.
    !
    ! Conditions:
    ! The handle must be live, and the pointer valid for writing.
    integer(c_int) function unisono_split(comm, color, key, group) bind(c)
      import
      type(c_ptr), value :: comm
      integer(c_int), value :: color
      integer(c_int), value :: key
      type(c_ptr), intent(out) :: group
    end function

    ! Creates a communicator of `count` ranks of this one, numbered in this order; other ranks get NULL. All ranks call it, with the
    ! same list.
    !
    ! Conditions:
    ! The handle must be live, the list one of `count` ranks, and the pointer valid for writing.
    integer(c_int) function unisono_group(comm, ranks, count, group) bind(c)
      import
      type(c_ptr), value :: comm
      integer(c_int), intent(in) :: ranks(*)
      integer(c_size_t), value :: count
      type(c_ptr), intent(out) :: group
    end function

    ! Allocates registered memory of `size_bytes`, zeroed and aligned to a page. It is a local operation.
    !
    ! Conditions:
    ! The handle must be live, and the pointer valid for writing.
    integer(c_int) function unisono_alloc(comm, size_bytes, memory) bind(c)
      import
      type(c_ptr), value :: comm
      integer(c_size_t), value :: size_bytes
      type(c_ptr), intent(out) :: memory
    end function

    ! Returns the address of registered memory; NULL for NULL.
    !
    ! Conditions:
    ! The handle must be null or live.
    type(c_ptr) function unisono_address(memory) bind(c)
      import
      type(c_ptr), value :: memory
    end function

    ! Copies `size_bytes` bytes to or from registered memory. Unlike `memcpy` of some libraries, it takes about the same time for
    ! all offsets of the two arrays within a page.
    !
    ! Conditions:
    ! Both pointers must be to this many bytes, which do not overlap. They may be null if `size_bytes` is 0.
    subroutine unisono_copy(to, from, size_bytes) bind(c)
      import
      type(c_ptr), value :: to
      type(c_ptr), value :: from
      integer(c_size_t), value :: size_bytes
    end subroutine

    ! Frees registered memory, before or after its communicator, and not while a call uses it. NULL is ignored.
    !
    ! Conditions:
    ! The handle must be null or live, and not used afterwards.
    subroutine unisono_release(memory) bind(c)
      import
      type(c_ptr), value :: memory
    end subroutine

    ! Sends `count` elements to rank `to` (`MPI_Send`).
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_send(comm, data, count, dtype, to, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: to
      type(c_ptr), value :: options
    end function

    ! Receives `count` elements from rank `from`: the earliest message with the tag of the options (`MPI_Recv`).
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, and the options null or valid.
    integer(c_int) function unisono_receive(comm, data, count, dtype, from, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: from
      type(c_ptr), value :: options
    end function

    ! Receives `count` elements from the rank that sends first (`MPI_Recv` with `MPI_ANY_SOURCE`), and stores its number in `from`.
    !
    ! Conditions:
    ! The handle must be live, the array one of `count` elements, the pointer valid, and the options null or valid.
    integer(c_int) function unisono_receive_any(comm, data, count, dtype, from, options) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), intent(out) :: from
      type(c_ptr), value :: options
    end function

    ! Starts the non-blocking form of `unisono_send` (`MPI_Isend`). Do not access the array until `unisono_wait` has returned. Any
    ! number of messages may be in flight, in any order: none waits for another, nor for a collective.
    !
    ! Conditions:
    ! As `unisono_send`; the pointer to the request must be valid.
    integer(c_int) function unisono_send_async(comm, data, count, dtype, to, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: to
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Starts the non-blocking form of `unisono_receive` (`MPI_Irecv`), as `unisono_send_async`.
    !
    ! Conditions:
    ! As `unisono_receive`; the pointer to the request must be valid.
    integer(c_int) function unisono_receive_async(comm, data, count, dtype, from, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: from
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Starts the non-blocking form of `unisono_receive_any` (`MPI_Irecv` with `MPI_ANY_SOURCE`), as `unisono_send_async`. Once
    ! `unisono_wait` has returned without an error, `from` is the number of the sender.
    !
    ! Conditions:
    ! As `unisono_receive_any`; the pointer to the request must be valid, and `from` until `unisono_wait` has returned.
    integer(c_int) function unisono_receive_any_async(comm, data, count, dtype, from, options, request) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), intent(inout), asynchronous :: from
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: request
    end function

    ! Plans a collective on `count` elements (`MPI_Allreduce_init` and similar), to start it many times. `operation` is its name,
    ! such as "all_reduce"; `op` is its reduction and `root` its root, each -1 for an operation without one. All ranks plan the same
    ! call. The array must exist as long as the plan.
    !
    ! Conditions:
    ! The handle must be live, the name a string, the array one of `count` elements, the options null or valid, and the pointer to
    ! the plan valid for writing.
    integer(c_int) function unisono_plan_create(comm, operation, data, count, dtype, op, root, options, plan) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: operation
      type(c_ptr), value :: data
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype
      integer(c_int), value :: op
      integer(c_int), value :: root
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: plan
    end function

    ! Starts a planned call on the communicator that planned it (`MPI_Start`). Do not access the array until `unisono_plan_wait` has
    ! returned.
    !
    ! Conditions:
    ! The handles must be live.
    integer(c_int) function unisono_plan_start(comm, plan) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: plan
    end function

    ! Waits until a planned call is done (`MPI_Wait`). The array then has the result.
    !
    ! Conditions:
    ! The handles must be live.
    integer(c_int) function unisono_plan_wait(comm, plan) bind(c)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: plan
    end function

    ! Frees a plan, before or after its communicator, and not while its call is started. NULL is ignored.
    !
    ! Conditions:
    ! The handle must be null or live, and not used afterwards.
    subroutine unisono_plan_free(plan) bind(c)
      import
      type(c_ptr), value :: plan
    end subroutine

    ! Defines a reduction by a function of the program, and writes its number, which is the `op` argument of calls, to `op`.
    !
    ! Its elements are of type `dtype`; or, if `element_bytes` is not 0, of that size in bytes (a power of two, at most 64), of any
    ! alignment, in arrays of UNISONO_U8, whose `count` is in bytes: rank r's own part is then of whole elements, `element_bytes`
    ! times that of `unisono_own_part` for the number of elements.
    !
    ! The function must be associative. Results are x0 ∘ x1 ∘ … in the order of ranks unless `is_commutative` is not 0;
    ! algorithms that do not keep this order are not chosen for it, and refused if they are named. All ranks define the same
    ! function with the same name. Calls with reductions of different names, types or commutativity are UNISONO_ERROR_MISMATCH. The
    ! definition is kept until the process ends: define a reduction once, not for every call.
    !
    ! Conditions:
    ! The name must be a string, the pointer to `op` valid for writing, and the function safe to call with `context` from any
    ! thread, and on several at once, until the process ends.
    integer(c_int) function unisono_reduction_create(name, dtype, element_bytes, is_commutative, function, context, op) bind(c)
      import
      type(c_ptr), value :: name
      integer(c_int), value :: dtype
      integer(c_size_t), value :: element_bytes
      integer(c_int), value :: is_commutative
      type(c_funptr), value :: function
      type(c_ptr), value :: context
      integer(c_int), intent(out) :: op
    end function

    ! Stores 1 in `is_done` if a call is done, so that `unisono_wait` returns at once, otherwise 0.
    !
    ! Conditions:
    ! The request must be live, and the pointer valid for writing.
    integer(c_int) function unisono_test(request, is_done) bind(c)
      import
      type(c_ptr), value :: request
      integer(c_int), intent(out) :: is_done
    end function

    ! Waits until a call is done, at most `timeout_s` seconds, which are above 0. Stores 1 in `is_done` if the call is done,
    ! otherwise 0. It does not free the request: `unisono_wait` does, and returns the result of the call.
    !
    ! Conditions:
    ! The request must be live, and the pointer valid for writing.
    integer(c_int) function unisono_wait_for(request, timeout_s, is_done) bind(c)
      import
      type(c_ptr), value :: request
      real(c_double), value :: timeout_s
      integer(c_int), intent(out) :: is_done
    end function

    ! Waits until a call is done, frees the request, and sets it to NULL. Returns the result of the call. Any thread may wait for
    ! it.
    !
    ! Conditions:
    ! The pointer must be to a live request.
    integer(c_int) function unisono_wait(request) bind(c)
      import
      type(c_ptr), intent(inout) :: request
    end function

    ! Waits until `count` calls are done, frees their requests, and sets them to NULL (`MPI_Waitall`). Requests that are NULL are
    ! skipped. Returns the first error in the order of the requests, once all are done.
    !
    ! Conditions:
    ! The pointer must be to `count` requests that are live or NULL.
    integer(c_int) function unisono_wait_all(count, requests) bind(c)
      import
      integer(c_size_t), value :: count
      type(c_ptr), intent(inout) :: requests(*)
    end function

    ! Waits until one of `count` calls is done, frees its request, sets it to NULL, and stores its index (`MPI_Waitany`). Requests
    ! that are NULL are skipped; if all are, the index is -1. Returns the result of the call.
    !
    ! Conditions:
    ! The pointer must be to `count` requests that are live or NULL, and `index` valid for writing.
    integer(c_int) function unisono_wait_any(count, requests, index) bind(c)
      import
      integer(c_size_t), value :: count
      type(c_ptr), intent(inout) :: requests(*)
      integer(c_int), intent(out) :: index
    end function

    ! Replaces a communicator, after an error that loses it, by one of the ranks that are left. All of them call it. They keep their
    ! order and get new numbers. Further ranks may fail meanwhile. On an error the communicator is freed and set to NULL.
    !
    ! A rank is left out if its process has ended, or if it has freed its communicator. A rank that is alive and does not call this
    ! in time is UNISONO_ERROR_TIMEOUT; the text names it, and reports whether its process is stopped. The old communicator ends on
    ! all ranks when the first of them calls this: ranks in a call get UNISONO_ERROR_ABORTED, and can call it too. If MPI connects
    ! the ranks, the error is UNISONO_ERROR_UNSUPPORTED. If a rank of several machines reaches too few of the ranks that may be
    ! alive, the error is UNISONO_ERROR_PARTITIONED.
    !
    ! The new communicator inherits the algorithm and the timeout. Wait for the requests of the old one first. Its groups are lost;
    ! its memory keeps its values until it is released, and calls treat it as any other memory.
    !
    ! Conditions:
    ! The pointer must be to a live handle, which is not used afterwards.
    integer(c_int) function unisono_shrink(comm) bind(c)
      import
      type(c_ptr), intent(inout) :: comm
    end function

    ! Creates a communicator of these ranks and of `more` processes, which call `unisono_join` with the same address: the path of a
    ! Unix socket, or `host:port` of rank 0's machine. All ranks call it. The communicator remains usable, even if the processes do
    ! not join in time (UNISONO_ERROR_ON_RANK_0). A port that other machines can reach needs UNISONO_SECRET.
    !
    ! Conditions:
    ! The handle must be live, the address a string, and the pointer valid for writing.
    integer(c_int) function unisono_grow(comm, more, address, grown) bind(c)
      import
      type(c_ptr), value :: comm
      integer(c_size_t), value :: more
      type(c_ptr), value :: address
      type(c_ptr), intent(out) :: grown
    end function

    ! Joins a world that grows at this address (`unisono_grow`), as one of its last ranks. The algorithm and the timeouts are those
    ! of the world.
    !
    ! Conditions:
    ! The address must be a string, the settings null or valid, and the pointer valid for writing.
    integer(c_int) function unisono_join(address, settings, comm) bind(c)
      import
      type(c_ptr), value :: address
      type(c_ptr), value :: settings
      type(c_ptr), intent(out) :: comm
    end function

    ! Sets the number of ranks that must be left for `unisono_shrink` to succeed, identical on all ranks. Of several machines, it
    ! replaces the rule that most of the ranks that may be alive must be left: if the network is divided, and both sides have at
    ! least this number of ranks, both continue.
    !
    ! Conditions:
    ! The handle must be null or live.
    integer(c_int) function unisono_set_minimum_ranks(comm, ranks) bind(c)
      import
      type(c_ptr), value :: comm
      integer(c_size_t), value :: ranks
    end function

    ! Returns the number that a rank had before `unisono_shrink`; -1 if that did not return this communicator, there is no such
    ! rank, or the handle is not valid in this process.
    !
    ! Conditions:
    ! The handle must be null or live.
    integer(c_int) function unisono_former_rank(comm, rank) bind(c)
      import
      type(c_ptr), value :: comm
      integer(c_int), value :: rank
    end function

    ! Makes blocking calls and waits for requests on this thread run a function about every 100 µs while they wait for other ranks:
    ! to make progress on other work, or to check for an interrupt. NULL removes the function. The function must not use a
    ! communicator of this library. If it returns a text, the call fails with this cause on this rank, and with
    ! UNISONO_ERROR_ABORTED and the cause on the others.
    !
    ! Conditions:
    ! The function must be callable until it is replaced.
    subroutine unisono_while_waiting(look) bind(c)
      import
      type(c_funptr), value :: look
    end subroutine

    ! Starts a world among processes that can gather bytes from each other, with MPI for example. All of them call it, each with its
    ! own `rank` of `ranks`. It calls `gather` the same number of times on all ranks, before it returns.
    !
    ! Conditions:
    ! The function must be as its type describes, for this context; the settings null or valid; and the pointer valid for writing.
    integer(c_int) function unisono_start(rank, ranks, gather, context, settings, comm) bind(c)
      import
      integer(c_int), value :: rank
      integer(c_int), value :: ranks
      type(c_funptr), value :: gather
      type(c_ptr), value :: context
      type(c_ptr), value :: settings
      type(c_ptr), intent(out) :: comm
    end function

    ! Starts a world among processes that share a key-value store. All of them call it, each with its own `rank` of `ranks` and the
    ! same `name`, which prefixes the keys and must differ from that of any other world in the store. A key is set once.
    !
    ! Conditions:
    ! The functions must be as their types describe, for this context; the name a string; the settings null or valid; and the
    ! pointer valid for writing.
    integer(c_int) function unisono_start_store(rank, ranks, name, set, get, context, settings, comm) bind(c)
      import
      integer(c_int), value :: rank
      integer(c_int), value :: ranks
      type(c_ptr), value :: name
      type(c_funptr), value :: set
      type(c_funptr), value :: get
      type(c_ptr), value :: context
      type(c_ptr), value :: settings
      type(c_ptr), intent(out) :: comm
    end function

    ! Joins the world of processes that a launcher has started: `unisono launch`, `torchrun`, `mpirun`, `srun`, or any launcher that
    ! sets RANK and WORLD_SIZE. Without a launcher, it is a world of one rank. Ranks of one machine find each other by files, in the
    ! folder UNISONO_BOOTSTRAP_DIR if that is set; those of several machines connect to rank 0 at the port after MASTER_PORT of
    ! MASTER_ADDR.
    !
    ! Conditions:
    ! The settings must be null or valid, and the pointer valid for writing.
    integer(c_int) function unisono_start_launched(settings, comm) bind(c)
      import
      type(c_ptr), value :: settings
      type(c_ptr), intent(out) :: comm
    end function

    ! Starts a world of `ranks` threads of this process: stores this many communicators, rank 0's first. Use each on its own thread.
    !
    ! Conditions:
    ! The settings must be null or valid, and `comms` must have space for `ranks` pointers.
    integer(c_int) function unisono_start_threads(ranks, settings, comms) bind(c)
      import
      integer(c_int), value :: ranks
      type(c_ptr), value :: settings
      type(c_ptr), intent(out) :: comms(*)
    end function
  end interface
contains
  ! The text of `unisono_last_error`.
  function unisono_error_text() result(text)
    character(:), allocatable :: text
    character(c_char), pointer :: letters(:)
    type(c_ptr) :: last
    integer :: place
    interface
      integer(c_size_t) function strlen(string) bind(c)
        import
        type(c_ptr), value :: string
      end function
    end interface

    last = unisono_last_error()
    call c_f_pointer(last, letters, [strlen(last)])
    allocate (character(size(letters)) :: text)
    do place = 1, size(letters)
      text(place:place) = letters(place)
    end do
  end function
end module
