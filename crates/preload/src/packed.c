/* Buffers of any type as contiguous bytes. Buffers of a contiguous type need no packing. */

#include "accelerate.h"

#include <stdlib.h>

int pack(struct packed *packed, struct buffer buffer, MPI_Comm comm, bool has_values)
{
    *packed = (struct packed){ .bytes = buffer.address, .buffer = buffer, .comm = comm };
    if (is_contiguous(buffer.type))
        return MPI_SUCCESS;
    int room, position = 0;
    int code = PMPI_Pack_size((int)buffer.count, buffer.type, comm, &room);
    if (code != MPI_SUCCESS)
        return code;
    packed->bytes = packed->own = malloc((size_t)room + 1);
    if (packed->own == NULL)
        return MPI_ERR_NO_MEM;
    if (has_values)
        code = PMPI_Pack(buffer.address, (int)buffer.count, buffer.type, packed->own, room, &position, comm);
    if (code != MPI_SUCCESS)
        discard(packed);
    return code;
}

int unpack(struct packed *packed)
{
    int code = MPI_SUCCESS;
    if (packed->own != NULL) {
        const struct buffer *buffer = &packed->buffer;
        int room, position = 0;
        PMPI_Pack_size((int)buffer->count, buffer->type, packed->comm, &room);
        code = PMPI_Unpack(packed->own, room, &position, buffer->address, (int)buffer->count, buffer->type, packed->comm);
    }
    discard(packed);
    return code;
}

void discard(struct packed *packed)
{
    free(packed->own);
    packed->own = NULL;
}
