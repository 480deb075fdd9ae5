/* MPI's predefined types and operations, as Unisono has them. */

#include "accelerate.h"

#include <string.h>

enum { SLOTS = 256 };

/* Open addressing: a handle is an address in Open MPI, and a number in MPICH. */
static struct type slots[SLOTS];
static bool is_used[SLOTS];

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
    /* An MPI without a type of Fortran has a null handle for it. */
    if (handle == MPI_DATATYPE_NULL || type_of(handle) != NULL || PMPI_Type_size(handle, &size_bytes) != MPI_SUCCESS)
        return;
    size_t slot = slot_of(handle);
    while (is_used[slot])
        slot = (slot + 1) % SLOTS;
    is_used[slot] = true;
    slots[slot] = (struct type){ handle, kind, size_bytes, dtype_of(kind, kind == COMPLEX ? size_bytes / 2 : size_bytes) };
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
    ADD_ALL(is_signed, SIGNED);
    ADD_ALL(is_unsigned, UNSIGNED);
    ADD_ALL(is_floating, FLOATING);
    ADD_ALL(is_complex, COMPLEX);
    ADD_ALL(is_moved, MOVED);
}

const struct type *type_of(MPI_Datatype handle)
{
    for (size_t slot = slot_of(handle); is_used[slot]; slot = (slot + 1) % SLOTS)
        if (slots[slot].handle == handle)
            return &slots[slot];
    return NULL;
}

bool is_reduced(const struct type *type, int op)
{
    bool is_of_bits = op == UNISONO_BIT_AND || op == UNISONO_BIT_OR || op == UNISONO_BIT_XOR;
    switch (type->kind) {
    case MOVED:
        return false;
    case COMPLEX:
        return type->dtype != NONE && op == UNISONO_SUM;
    case FLOATING:
        /* MPI decides whether it reduces the bits of a float, or its truth. */
        return type->dtype != NONE && op < UNISONO_BIT_AND;
    default:
        return type->dtype != NONE || is_of_bits;
    }
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
    return op == MPI_LXOR ? UNISONO_LOGICAL_XOR : NONE;
}
