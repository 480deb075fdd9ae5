/* Empty: NCCL names the half formats by numbers. */
