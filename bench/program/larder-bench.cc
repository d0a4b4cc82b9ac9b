// `larder bench`, a separate program like larder-simulate.

#include "bench/bench.h"

int main(int argc, char** argv) {
    return argc > 1 ? larder::bench::bench_main(argc - 1, argv + 1) : 2;
}
