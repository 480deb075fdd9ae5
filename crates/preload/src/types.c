/* Unisono's types and operations for those of MPI. */

#include "accelerate.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 256 };

/* Open addressing: a handle is an address in Open MPI, and a number in MPICH and in the standard ABI. */
static struct type slots[SLOTS];
static bool is_used[SLOTS];

/* The attribute of a derived type that is committed, and its values: whether the type is contiguous, or that this is not known yet. */
static int of_type = MPI_KEYVAL_INVALID;
static char contiguous, spread, committed;

static size_t slot_of(MPI_Datatype handle)
{
    uintptr_t number = (uintptr_t)handle;
    return (number >> 4 ^ number >> 12 ^ number) * (uintptr_t)0x9e3779b97f4a7c15 >> 56 & (SLOTS - 1);
}

/* Returns Unisono's type with the same values. */
static int dtype_of(enum kind kind, int size_bytes)
{
    switch (kind) {
    case SIGNED:
    case FORTRAN:
        return size_bytes == 4 ? UNISONO_I32 : size_bytes == 8 ? UNISONO_I64 : NONE;
    case UNSIGNED:
        return size_bytes == 1 ? UNISONO_U8 : size_bytes == 4 ? UNISONO_U32 : size_bytes == 8 ? UNISONO_U64 : NONE;
    case COMPLEX:
    case FLOATING:
        return size_bytes == 4 ? UNISONO_F32 : size_bytes == 8 ? UNISONO_F64 : NONE;
    default:
        return NONE;
    }
}

/* Adds a type. Returns NULL if it is there already, or if MPI does not have it. */
static struct type *add(MPI_Datatype handle, enum kind kind)
{
    int size_bytes;
    MPI_Aint lower, extent, true_lower, true_extent;
    /* An MPI without a Fortran type has a null handle for it. */
    if (handle == MPI_DATATYPE_NULL || type_of(handle) != NULL || PMPI_Type_size(handle, &size_bytes) != MPI_SUCCESS)
        return NULL;
    PMPI_Type_get_extent(handle, &lower, &extent);
    PMPI_Type_get_true_extent(handle, &true_lower, &true_extent);
    size_t slot = slot_of(handle);
    while (is_used[slot])
        slot = (slot + 1) % SLOTS;
    is_used[slot] = true;
    int dtype = dtype_of(kind, kind == COMPLEX ? size_bytes / 2 : size_bytes);
    slots[slot] = (struct type){ handle, kind, size_bytes, extent, true_extent, dtype, 0 };
    return &slots[slot];
}

static void add_all(const MPI_Datatype *handles, size_t count, enum kind kind)
{
    for (size_t i = 0; i < count; i++)
        add(handles[i], kind);
}

/* Adds types of integers. Processors differ, and so MPI's results may, but all ranks must agree on the calls that they leave to MPI. */
static void add_integers(const MPI_Datatype *handles, size_t count, enum kind kind)
{
    struct type *added[count];
    unsigned inexact[count];
    for (size_t i = 0; i < count; i++) {
        added[i] = add(handles[i], kind);
        inexact[i] = added[i] == NULL ? 0 : inexact_reductions(added[i]);
    }
    PMPI_Allreduce(MPI_IN_PLACE, inexact, (int)count, MPI_UNSIGNED, MPI_BOR, MPI_COMM_WORLD);
    for (size_t i = 0; i < count; i++)
        if (added[i] != NULL)
            added[i]->inexact = inexact[i];
}

#define ADD(add, handles, kind) add(handles, sizeof(handles) / sizeof(*(handles)), kind)

void types_begin(void)
{
    const MPI_Datatype is_signed[] = {
        MPI_SIGNED_CHAR, MPI_SHORT,    MPI_INT,      MPI_LONG,     MPI_LONG_LONG, MPI_INT8_T,   MPI_INT16_T, MPI_INT32_T,
        MPI_INT64_T,     MPI_AINT,     MPI_OFFSET,   MPI_COUNT,
    };
    const MPI_Datatype is_fortran[] = { MPI_INTEGER, MPI_INTEGER1, MPI_INTEGER2, MPI_INTEGER4, MPI_INTEGER8 };
    const MPI_Datatype is_unsigned[] = {
        MPI_UNSIGNED_CHAR,      MPI_UNSIGNED_SHORT, MPI_UNSIGNED, MPI_UNSIGNED_LONG,
        MPI_UNSIGNED_LONG_LONG, MPI_UINT8_T,        MPI_UINT16_T, MPI_UINT32_T,
        MPI_UINT64_T,
    };
    const MPI_Datatype is_floating[] = {
        MPI_FLOAT, MPI_DOUBLE, MPI_LONG_DOUBLE, MPI_REAL, MPI_REAL4, MPI_REAL8, MPI_DOUBLE_PRECISION,
    };
    const MPI_Datatype is_complex[] = { MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_C_LONG_DOUBLE_COMPLEX, MPI_COMPLEX,
                                        MPI_DOUBLE_COMPLEX };
    /* MPI reduces them differently, or not at all. */
    const MPI_Datatype is_moved[] = { MPI_CHAR, MPI_WCHAR, MPI_BYTE, MPI_PACKED, MPI_C_BOOL, MPI_LOGICAL, MPI_CHARACTER };
    const MPI_Datatype is_pair[] = { MPI_2INT, MPI_LONG_INT, MPI_SHORT_INT, MPI_2INTEGER };
    const MPI_Datatype is_floating_pair[] = { MPI_FLOAT_INT, MPI_DOUBLE_INT, MPI_LONG_DOUBLE_INT, MPI_2REAL, MPI_2DOUBLE_PRECISION };
    PMPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, MPI_TYPE_NULL_DELETE_FN, &of_type, NULL);
    ADD(add_integers, is_signed, SIGNED);
    ADD(add_integers, is_fortran, FORTRAN);
    ADD(add_integers, is_unsigned, UNSIGNED);
    ADD(add_all, is_floating, FLOATING);
    ADD(add_all, is_complex, COMPLEX);
    ADD(add_all, is_moved, MOVED);
    ADD(add_all, is_pair, INTEGER_PAIR);
    ADD(add_all, is_floating_pair, FLOATING_PAIR);
}

const struct type *type_of(MPI_Datatype handle)
{
    for (size_t slot = slot_of(handle); is_used[slot]; slot = (slot + 1) % SLOTS)
        if (slots[slot].handle == handle)
            return &slots[slot];
    return NULL;
}

/* Returns whether packing leaves an element unchanged. Each byte is set to bits of its position, and each round tests eight bits.
 * `*is_known` is set to false if no element can be packed. */
static bool is_packed_unchanged(MPI_Datatype handle, int bytes, bool *is_known)
{
    int room;
    *is_known = PMPI_Pack_size(1, handle, quiet_comm, &room) == MPI_SUCCESS;
    if (!*is_known || room < bytes)
        return false;
    /* All ranks must find the same for a reduction, whose elements are short. */
    void *(*allocate)(size_t) = bytes <= STAGE_BYTES ? allocated : malloc;
    unsigned char *element = allocate((size_t)bytes), *packed = allocate((size_t)room);
    *is_known = element != NULL && packed != NULL;
    bool is = *is_known;
    for (int shift = 0; is && shift < 32 && (shift == 0 || bytes >> shift > 0); shift += 8) {
        int position = 0;
        for (int i = 0; i < bytes; i++)
            element[i] = (unsigned char)(i >> shift);
        *is_known = PMPI_Pack(element, 1, handle, packed, room, &position, quiet_comm) == MPI_SUCCESS;
        is = *is_known && position == bytes && memcmp(element, packed, (size_t)bytes) == 0;
    }
    free(element);
    free(packed);
    return is;
}

/* Returns whether an element has no padding: its extent is the number of bytes that MPI sends. */
static bool is_dense(MPI_Datatype handle, int *bytes)
{
    MPI_Aint lower, extent, true_lower, true_extent;
    if (PMPI_Type_size(handle, bytes) != MPI_SUCCESS || *bytes == MPI_UNDEFINED || *bytes == 0)
        return false;
    PMPI_Type_get_extent(handle, &lower, &extent);
    PMPI_Type_get_true_extent(handle, &true_lower, &true_extent);
    return lower == 0 && true_lower == 0 && extent == *bytes && true_extent == *bytes;
}

/* Returns whether MPI accepts a type in a call. Functions of types would call the error handler of another communicator than the program's. */
static bool is_accepted(MPI_Datatype handle)
{
    /* It reads no values. MPICH does not check the type of no elements. */
    return PMPI_Send(&committed, 1, handle, MPI_PROC_NULL, 0, quiet_comm) == MPI_SUCCESS;
}

/* Returns whether MPI accepts a type. The answer for the last type of this thread is kept. */
static bool was_accepted(MPI_Datatype handle)
{
    static _Thread_local MPI_Datatype last;
    static _Thread_local bool was_accepted;
    if (handle != last || !was_accepted) {
        last = handle;
        was_accepted = is_accepted(handle);
    }
    return was_accepted;
}

/* Returns the value of the attribute of a derived type, or NULL if the type is not committed. MPI tells that only in a call. */
static const char *state_of(MPI_Datatype handle)
{
    void *state;
    int is_there = 0;
    if (!was_accepted(handle))
        return NULL;
    if (PMPI_Type_get_attr(handle, of_type, &state, &is_there) == MPI_SUCCESS && is_there)
        return state;
    /* A new type may have the handle of one that was freed. */
    if (!is_accepted(handle))
        return NULL;
    PMPI_Type_set_attr(handle, of_type, &committed);
    return &committed;
}

bool is_committed(MPI_Datatype handle)
{
    return type_of(handle) != NULL || state_of(handle) != NULL;
}

bool is_contiguous(MPI_Datatype handle)
{
    const struct type *type = type_of(handle);
    int bytes;
    if (type != NULL)
        return type->extent_bytes == type->size_bytes;
    const char *state = state_of(handle);
    if (state != &committed)
        return state == &contiguous;
    bool is_known = true, is = is_dense(handle, &bytes) && is_packed_unchanged(handle, bytes, &is_known);
    /* If this rank lacks memory, the ranks must still agree on later calls. */
    if (is_known)
        PMPI_Type_set_attr(handle, of_type, is ? &contiguous : &spread);
    return is;
}

static bool is_logical(int op)
{
    return op == UNISONO_LOGICAL_AND || op == UNISONO_LOGICAL_OR || op == UNISONO_LOGICAL_XOR;
}

bool is_reduced_by_mpi(const struct type *type, int op)
{
    if (op == USER_DEFINED)
        return true;
    switch (type->kind) {
    case MOVED:
        return false;
    case INTEGER_PAIR:
    case FLOATING_PAIR:
        return op == MAXLOC || op == MINLOC;
    case COMPLEX:
        return op == UNISONO_SUM || op == UNISONO_PRODUCT;
    case FLOATING:
        /* MPI decides whether it reduces the bits or the truth value of a float. */
        return op < UNISONO_BIT_AND;
    case FORTRAN:
        return op < MAXLOC && !is_logical(op);
    default:
        return op < MAXLOC;
    }
}

bool is_reduced(const struct type *type, int op)
{
    bool is_of_bits = op == UNISONO_BIT_AND || op == UNISONO_BIT_OR || op == UNISONO_BIT_XOR;
    bool is_of_parts = type->kind != COMPLEX || op == UNISONO_SUM;
    return is_reduced_by_mpi(type, op) && op != USER_DEFINED && (type->dtype != NONE || is_of_bits) && is_of_parts;
}

bool may_round(const struct type *type, int op)
{
    return op == USER_DEFINED || type->kind == FLOATING || type->kind == COMPLEX || type->kind == FLOATING_PAIR;
}

static bool is_user_defined(MPI_Op op)
{
#ifdef OPEN_MPI
    return op != MPI_OP_NULL && op != MPI_REPLACE && op != MPI_NO_OP;
#elif defined(MPI_ABI_VERSION)
    /* Handles of predefined operations are smaller than a page of memory. */
    return (uintptr_t)op >= 4096;
#else
    /* MPICH's handles of user-defined operations have the highest bit set. Later versions have more predefined operations. */
    return op < 0;
#endif
}

int reduction_of(MPI_Op op)
{
    static const struct {
        MPI_Op op;
        int number;
    } all[] = {
        { MPI_SUM, UNISONO_SUM },           { MPI_MAX, UNISONO_MAX },           { MPI_MIN, UNISONO_MIN },
        { MPI_PROD, UNISONO_PRODUCT },      { MPI_BAND, UNISONO_BIT_AND },      { MPI_BOR, UNISONO_BIT_OR },
        { MPI_BXOR, UNISONO_BIT_XOR },      { MPI_LAND, UNISONO_LOGICAL_AND },  { MPI_LOR, UNISONO_LOGICAL_OR },
        { MPI_LXOR, UNISONO_LOGICAL_XOR },  { MPI_MAXLOC, MAXLOC },             { MPI_MINLOC, MINLOC },
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (op == all[i].op)
            return all[i].number;
    return is_user_defined(op) ? USER_DEFINED : NONE;
}
