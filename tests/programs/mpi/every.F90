! The requests of every.c in each of the three bindings: -DF77, -DF90, -DF08. Errors end the program
! by the handler set.
program every
#if defined(F08)
  use mpi_f08
  implicit none
  type(MPI_File) :: f
  type(MPI_Group) :: group
  type(MPI_Info) :: info, info2
  type(MPI_Datatype) :: one, type, etype, filetype
  type(MPI_Request) :: request
  type(MPI_Status) :: status
#else
#if defined(F90)
  use mpi
  implicit none
#else
  implicit none
  include 'mpif.h'
#endif
  integer :: f, group, info, info2, one, type, etype, filetype, request
  integer :: status(MPI_STATUS_SIZE)
#endif
  integer :: e, rank, ranks, amode, b(2)
  logical :: flag
  integer(kind=MPI_OFFSET_KIND) :: offset
  integer(kind=MPI_ADDRESS_KIND) :: extent
  character(len=MPI_MAX_DATAREP_STRING) :: datarep
  character(len=4096) :: name

  b = 1
  call get_command_argument(1, name)
  call MPI_Init(e)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, e)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, e)
  call MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_ARE_FATAL, e)
  call MPI_File_open(MPI_COMM_WORLD, trim(name), MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, f, e)
  call MPI_File_get_amode(f, amode, e)
  call MPI_File_get_group(f, group, e)
  call MPI_File_set_size(f, int(4096, MPI_OFFSET_KIND), e)
  call MPI_File_preallocate(f, int(8192, MPI_OFFSET_KIND), e)
  call MPI_File_get_size(f, offset, e)
  call MPI_Info_create(info, e)
  call MPI_File_set_info(f, info, e)
  call MPI_File_get_info(f, info2, e)
#if !defined(NO_ATOMIC)
  call MPI_File_set_atomicity(f, .true., e)
  call MPI_File_get_atomicity(f, flag, e)
  call MPI_File_set_atomicity(f, .false., e)
#endif
  call MPI_Type_contiguous(1, MPI_INTEGER, one, e)
  call MPI_Type_create_resized(one, int(0, MPI_ADDRESS_KIND), int(4 * ranks, MPI_ADDRESS_KIND), type, e)
  call MPI_Type_commit(type, e)
  call MPI_File_set_view(f, int(4 * rank, MPI_OFFSET_KIND), MPI_INTEGER, type, 'native', MPI_INFO_NULL, e)
  call MPI_File_get_view(f, offset, etype, filetype, datarep, e)
  call MPI_File_get_type_extent(f, MPI_INTEGER, extent, e)
  call MPI_File_get_byte_offset(f, int(3, MPI_OFFSET_KIND), offset, e)
  call MPI_File_write_at(f, int(0, MPI_OFFSET_KIND), b, 2, MPI_INTEGER, MPI_STATUS_IGNORE, e)
  call MPI_File_write_at_all(f, int(2, MPI_OFFSET_KIND), b, 2, MPI_INTEGER, status, e)
  call MPI_File_iwrite_at(f, int(4, MPI_OFFSET_KIND), b, 2, MPI_INTEGER, request, e)
  call MPI_Wait(request, MPI_STATUS_IGNORE, e)
  call MPI_File_iwrite_at_all(f, int(6, MPI_OFFSET_KIND), b, 2, MPI_INTEGER, request, e)
  call MPI_Wait(request, MPI_STATUS_IGNORE, e)
  call MPI_File_seek(f, int(8, MPI_OFFSET_KIND), MPI_SEEK_SET, e)
  call MPI_File_write(f, b, 2, MPI_INTEGER, status, e)
  call MPI_File_write_all(f, b, 2, MPI_INTEGER, MPI_STATUS_IGNORE, e)
  call MPI_File_iwrite(f, b, 2, MPI_INTEGER, request, e)
  call MPI_Wait(request, MPI_STATUS_IGNORE, e)
  call MPI_File_iwrite_all(f, b, 2, MPI_INTEGER, request, e)
  call MPI_Wait(request, MPI_STATUS_IGNORE, e)
  call MPI_File_get_position(f, offset, e)
  call MPI_File_write_at_all_begin(f, int(16, MPI_OFFSET_KIND), b, 2, MPI_INTEGER, e)
  call MPI_File_write_at_all_end(f, b, MPI_STATUS_IGNORE, e)
  call MPI_File_write_all_begin(f, b, 2, MPI_INTEGER, e)
  call MPI_File_write_all_end(f, b, status, e)
  call MPI_File_sync(f, e)
  call MPI_File_read_at(f, int(0, MPI_OFFSET_KIND), b, 2, MPI_INTEGER, MPI_STATUS_IGNORE, e)
  call MPI_File_read_at_all(f, int(2, MPI_OFFSET_KIND), b, 2, MPI_INTEGER, status, e)
  call MPI_File_iread_at(f, int(4, MPI_OFFSET_KIND), b, 2, MPI_INTEGER, request, e)
  call MPI_Wait(request, MPI_STATUS_IGNORE, e)
  call MPI_File_iread_at_all(f, int(6, MPI_OFFSET_KIND), b, 2, MPI_INTEGER, request, e)
  call MPI_Wait(request, MPI_STATUS_IGNORE, e)
  call MPI_File_seek(f, int(-10, MPI_OFFSET_KIND), MPI_SEEK_CUR, e)
  call MPI_File_read(f, b, 2, MPI_INTEGER, status, e)
  call MPI_File_read_all(f, b, 2, MPI_INTEGER, MPI_STATUS_IGNORE, e)
  call MPI_File_iread(f, b, 2, MPI_INTEGER, request, e)
  call MPI_Wait(request, MPI_STATUS_IGNORE, e)
  call MPI_File_iread_all(f, b, 2, MPI_INTEGER, request, e)
  call MPI_Wait(request, MPI_STATUS_IGNORE, e)
  call MPI_File_read_at_all_begin(f, int(16, MPI_OFFSET_KIND), b, 2, MPI_INTEGER, e)
  call MPI_File_read_at_all_end(f, b, MPI_STATUS_IGNORE, e)
  call MPI_File_read_all_begin(f, b, 2, MPI_INTEGER, e)
  call MPI_File_read_all_end(f, b, status, e)
  call MPI_File_set_view(f, int(0, MPI_OFFSET_KIND), MPI_INTEGER, MPI_INTEGER, 'native', MPI_INFO_NULL, e)
  call MPI_File_seek_shared(f, int(0, MPI_OFFSET_KIND), MPI_SEEK_SET, e)
  call MPI_File_write_shared(f, b, 2, MPI_INTEGER, MPI_STATUS_IGNORE, e)
  call MPI_File_iwrite_shared(f, b, 2, MPI_INTEGER, request, e)
  call MPI_Wait(request, MPI_STATUS_IGNORE, e)
  call MPI_Barrier(MPI_COMM_WORLD, e)
  call MPI_File_write_ordered(f, b, 2, MPI_INTEGER, status, e)
  call MPI_File_write_ordered_begin(f, b, 2, MPI_INTEGER, e)
  call MPI_File_write_ordered_end(f, b, MPI_STATUS_IGNORE, e)
  call MPI_Barrier(MPI_COMM_WORLD, e)
  call MPI_File_get_position_shared(f, offset, e)
  call MPI_Barrier(MPI_COMM_WORLD, e)
  call MPI_File_seek_shared(f, int(0, MPI_OFFSET_KIND), MPI_SEEK_SET, e)
  call MPI_File_read_shared(f, b, 2, MPI_INTEGER, MPI_STATUS_IGNORE, e)
  call MPI_File_iread_shared(f, b, 2, MPI_INTEGER, request, e)
  call MPI_Wait(request, MPI_STATUS_IGNORE, e)
  call MPI_Barrier(MPI_COMM_WORLD, e)
  call MPI_File_read_ordered(f, b, 2, MPI_INTEGER, status, e)
  call MPI_File_read_ordered_begin(f, b, 2, MPI_INTEGER, e)
  call MPI_File_read_ordered_end(f, b, MPI_STATUS_IGNORE, e)
  call MPI_File_close(f, e)
  call MPI_Barrier(MPI_COMM_WORLD, e)
  if (rank == 0) &
  call MPI_File_delete(trim(name), MPI_INFO_NULL, e)
  call MPI_Finalize(e)
end program
