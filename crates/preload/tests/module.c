/* Runs an MPI program as Python runs its modules: MPI is loaded late, and visible to the module only. */

#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    void *module = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*run)(int, char **) = module == NULL ? NULL : (int (*)(int, char **))dlsym(module, "main");
    if (run == NULL) {
        fprintf(stderr, "module: %s\n", dlerror());
        return 1;
    }
    return run(argc - 1, argv + 1);
}
