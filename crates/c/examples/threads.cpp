// All-reduces among the threads of a C++ program: c++ threads.cpp $(pkg-config --cflags --libs unisono) -pthread

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#include <unisono.h>

int main()
{
    constexpr int ranks = 4;
    unisono_comm *comms[ranks] = {};
    if (unisono_start_threads(ranks, nullptr, comms) != UNISONO_OK) {
        std::fprintf(stderr, "unisono: %s\n", unisono_last_error());
        return EXIT_FAILURE;
    }
    std::vector<std::thread> threads;
    for (unisono_comm *comm : comms)
        threads.emplace_back([comm] {
            std::vector<float> values(1000, static_cast<float>(unisono_rank(comm)));
            if (unisono_all_reduce(comm, values.data(), values.size(), UNISONO_F32, UNISONO_MAX, nullptr) != UNISONO_OK
                || values[999] != ranks - 1) {
                std::fprintf(stderr, "unisono: %s\n", unisono_last_error());
                std::exit(EXIT_FAILURE);
            }
            unisono_free(comm);
        });
    for (std::thread &thread : threads)
        thread.join();
    std::puts("every thread has the largest value");
}
