/* MPI's types and operations, as Unisono has them. */

#include "accelerate.h"

#include <stdlib.h>

enum { SLOTS = 256 };

/* Open addressing: a handle is an address in Open MPI, and a number in MPICH. */
static struct type slots[SLOTS];
static bool is_used[SLOTS];

/* The attribute of a type of the program's, which goes with the type: its value is NULL if the type is not contiguous. */
static int of_type = MPI_KEYVAL_INVALID;

static size_t slot_of(MPI_Datatype handle)
{
    uintptr_t number = (uintptr_t)handle;
    return (number >> 4 ^ number >> 12 ^ number) * (uintptr_t)0x9e3779b97f4a7c15 >> 56 & (SLOTS - 1);
}

/* The type of Unisono's with the same values. */
static int dtype_of(enum kind kind, int size_bytes)
{
    switch (kind) {
    case SIGNED:
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

static void add(MPI_Datatype handle, enum kind kind)
{
    int size_bytes;
    MPI_Aint lower, extent;
    /* An MPI without a type of Fortran has a null handle for it. */
    if (handle == MPI_DATATYPE_NULL || type_of(handle) != NULL || PMPI_Type_size(handle, &size_bytes) != MPI_SUCCESS)
        return;
    PMPI_Type_get_extent(handle, &lower, &extent);
    size_t slot = slot_of(handle);
    while (is_used[slot])
        slot = (slot + 1) % SLOTS;
    is_used[slot] = true;
    slots[slot] = (struct type){ handle, kind, size_bytes, extent, dtype_of(kind, kind == COMPLEX ? size_bytes / 2 : size_bytes) };
}

static void add_all(const MPI_Datatype *handles, size_t count, enum kind kind)
{
    for (size_t i = 0; i < count; i++)
        add(handles[i], kind);
}

#define ADD_ALL(handles, kind) add_all(handles, sizeof(handles) / sizeof(*(handles)), kind)

void types_begin(void)
{
    const MPI_Datatype is_signed[] = {
        MPI_SIGNED_CHAR, MPI_SHORT,    MPI_INT,      MPI_LONG,     MPI_LONG_LONG, MPI_INT8_T,   MPI_INT16_T, MPI_INT32_T,
        MPI_INT64_T,     MPI_AINT,     MPI_OFFSET,   MPI_COUNT,    MPI_INTEGER,   MPI_INTEGER1, MPI_INTEGER2, MPI_INTEGER4,
        MPI_INTEGER8,
    };
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
    /* MPI reduces them otherwise, or not at all. */
    const MPI_Datatype is_moved[] = { MPI_CHAR, MPI_WCHAR, MPI_BYTE, MPI_PACKED, MPI_C_BOOL, MPI_LOGICAL, MPI_CHARACTER };
    const MPI_Datatype is_pair[] = { MPI_2INT, MPI_LONG_INT, MPI_SHORT_INT, MPI_2INTEGER };
    const MPI_Datatype is_floating_pair[] = { MPI_FLOAT_INT, MPI_DOUBLE_INT, MPI_LONG_DOUBLE_INT, MPI_2REAL, MPI_2DOUBLE_PRECISION };
    PMPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, MPI_TYPE_NULL_DELETE_FN, &of_type, NULL);
    ADD_ALL(is_signed, SIGNED);
    ADD_ALL(is_unsigned, UNSIGNED);
    ADD_ALL(is_floating, FLOATING);
    ADD_ALL(is_complex, COMPLEX);
    ADD_ALL(is_moved, MOVED);
    ADD_ALL(is_pair, INTEGER_PAIR);
    ADD_ALL(is_floating_pair, FLOATING_PAIR);
}

const struct type *type_of(MPI_Datatype handle)
{
    for (size_t slot = slot_of(handle); is_used[slot]; slot = (slot + 1) % SLOTS)
        if (slots[slot].handle == handle)
            return &slots[slot];
    return NULL;
}

/* The parts of a type of the program's, by which it was made. */
struct parts {
    int combiner, integers, addresses, types;
    int *integer;
    MPI_Aint *address;
    MPI_Datatype *type;
};

static bool is_predefined(MPI_Datatype handle)
{
    int integers, addresses, types, combiner;
    PMPI_Type_get_envelope(handle, &integers, &addresses, &types, &combiner);
    return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL || combiner == MPI_COMBINER_F90_COMPLEX ||
           combiner == MPI_COMBINER_F90_INTEGER;
}

/* The parts that a type has, to be freed by `forget`. */
static struct parts parts_of(MPI_Datatype handle)
{
    struct parts parts;
    PMPI_Type_get_envelope(handle, &parts.integers, &parts.addresses, &parts.types, &parts.combiner);
    parts.integer = allocated(sizeof(*parts.integer) * (size_t)(parts.integers + 1));
    parts.address = allocated(sizeof(*parts.address) * (size_t)(parts.addresses + 1));
    parts.type = allocated(sizeof(*parts.type) * (size_t)(parts.types + 1));
    PMPI_Type_get_contents(handle, parts.integers, parts.addresses, parts.types, parts.integer, parts.address, parts.type);
    return parts;
}

static void forget(struct parts *parts)
{
    for (int i = 0; i < parts->types; i++)
        if (!is_predefined(parts->type[i]))
            PMPI_Type_free(&parts->type[i]);
    free(parts->integer);
    free(parts->address);
    free(parts->type);
}

static MPI_Aint bytes_of(MPI_Datatype handle)
{
    MPI_Count bytes;
    PMPI_Type_size_x(handle, &bytes);
    return (MPI_Aint)bytes;
}

/* Whether the members of a structure lie side by side: their number and lengths are integers. */
static bool are_side_by_side(const struct parts *parts)
{
    MPI_Aint end = 0;
    for (int i = 0; i < parts->types; i++) {
        if (parts->address[i] != end || !is_contiguous(parts->type[i]))
            return false;
        end += parts->integer[1 + i] * bytes_of(parts->type[i]);
    }
    return true;
}

/* Whether an element of a type has no gaps, nor parts out of order. One of another kind is not examined. */
static bool is_without_gaps(MPI_Datatype handle)
{
    struct parts parts = parts_of(handle);
    bool is = false;
    if (parts.combiner == MPI_COMBINER_DUP || parts.combiner == MPI_COMBINER_CONTIGUOUS || parts.combiner == MPI_COMBINER_RESIZED)
        is = is_contiguous(parts.type[0]);
    else if (parts.combiner == MPI_COMBINER_STRUCT)
        is = are_side_by_side(&parts);
    forget(&parts);
    return is;
}

bool is_contiguous(MPI_Datatype handle)
{
    const struct type *type = type_of(handle);
    void *attribute;
    int is_there = 0;
    MPI_Aint lower, extent;
    if (type != NULL)
        return type->extent_bytes == type->size_bytes;
    if (PMPI_Type_get_attr(handle, of_type, &attribute, &is_there) == MPI_SUCCESS && is_there)
        return attribute != NULL;
    if (is_predefined(handle) || PMPI_Type_get_extent(handle, &lower, &extent) != MPI_SUCCESS)
        return false;
    /* The extent of a structure may be longer than its members. */
    bool is = lower == 0 && extent == bytes_of(handle) && is_without_gaps(handle);
    PMPI_Type_set_attr(handle, of_type, is ? &of_type : NULL);
    return is;
}

bool is_reduced(const struct type *type, int op)
{
    bool is_of_bits = op == UNISONO_BIT_AND || op == UNISONO_BIT_OR || op == UNISONO_BIT_XOR;
    switch (type->kind) {
    case COMPLEX:
        return type->dtype != NONE && op == UNISONO_SUM;
    case FLOATING:
        /* MPI decides whether it reduces the bits of a float, or its truth. */
        return type->dtype != NONE && op < UNISONO_BIT_AND;
    case SIGNED:
    case UNSIGNED:
        return op < MAXLOC && (type->dtype != NONE || is_of_bits);
    default:
        return false;
    }
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
        return op < UNISONO_BIT_AND;
    default:
        return op < MAXLOC;
    }
}

bool may_round(const struct type *type, int op)
{
    return op == USER_DEFINED || type->kind == FLOATING || type->kind == COMPLEX || type->kind == FLOATING_PAIR;
}

static bool is_user_defined(MPI_Op op)
{
#ifdef OPEN_MPI
    return op != MPI_OP_NULL && op != MPI_REPLACE && op != MPI_NO_OP;
#else
    /* MPICH's handles of what a program makes have the highest bit. Its later versions have more operations of their own. */
    return op < 0;
#endif
}

int reduction_of(MPI_Op op)
{
    if (op == MPI_SUM)
        return UNISONO_SUM;
    if (op == MPI_MAX)
        return UNISONO_MAX;
    if (op == MPI_MIN)
        return UNISONO_MIN;
    if (op == MPI_PROD)
        return UNISONO_PRODUCT;
    if (op == MPI_BAND)
        return UNISONO_BIT_AND;
    if (op == MPI_BOR)
        return UNISONO_BIT_OR;
    if (op == MPI_BXOR)
        return UNISONO_BIT_XOR;
    if (op == MPI_LAND)
        return UNISONO_LOGICAL_AND;
    if (op == MPI_LOR)
        return UNISONO_LOGICAL_OR;
    if (op == MPI_LXOR)
        return UNISONO_LOGICAL_XOR;
    if (op == MPI_MAXLOC)
        return MAXLOC;
    if (op == MPI_MINLOC)
        return MINLOC;
    return is_user_defined(op) ? USER_DEFINED : NONE;
}
