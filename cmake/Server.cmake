# Everything but the client: the node daemon, the programs, the benches and the tests.
find_package(Boost 1.81 REQUIRED COMPONENTS json url)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(prometheus-cpp REQUIRED COMPONENTS core)
find_package(tomlplusplus REQUIRED)
find_package(OpenSSL 3 REQUIRED)
pkg_check_modules(LIBURING REQUIRED IMPORTED_TARGET liburing)
find_package(CURL 7.87 REQUIRED)
find_package(pugixml REQUIRED)
pkg_check_modules(LIBARCHIVE REQUIRED IMPORTED_TARGET libarchive)
pkg_check_modules(CLP REQUIRED IMPORTED_TARGET clp)
pkg_check_modules(CBC REQUIRED IMPORTED_TARGET cbc osi-clp)
pkg_check_modules(FUSE3 REQUIRED IMPORTED_TARGET fuse3)
find_library(LMDB_LIBRARY lmdb REQUIRED)

# The server's part of base has heavy dependencies, so a training job does not link it.
larder_library(base/server)
# Boost.Beast's templates: compiled together these files take several times as long under the sanitizers as one by one.
set_target_properties(larder_base_server PROPERTIES UNITY_BUILD OFF)
target_link_libraries(larder_base_server PUBLIC larder_base prometheus-cpp::core
    PRIVATE CURL::libcurl spdlog::spdlog Boost::json Boost::url OpenSSL::SSL tomlplusplus::tomlplusplus ${LMDB_LIBRARY} Threads::Threads)

include(cmake/Page.cmake)

# The protocol between nodes and the allocator, which both sides use.
larder_library(allocator/protocol)
target_link_libraries(larder_allocator_protocol PUBLIC larder_base larder_base_server PRIVATE Boost::json)

foreach(part device remote dataset store shard peers control)
    larder_library(cache/${part})
endforeach()
target_link_libraries(larder_cache_device PUBLIC larder_base PRIVATE PkgConfig::LIBURING Threads::Threads)
target_link_libraries(larder_cache_remote PUBLIC larder_cache_device larder_cache_protocol CURL::libcurl
    PRIVATE larder_base_server Boost::json OpenSSL::Crypto pugixml::pugixml Threads::Threads)
target_link_libraries(larder_cache_dataset PUBLIC larder_cache_remote larder_cache_protocol larder_base
    PRIVATE PkgConfig::LIBARCHIVE PkgConfig::ZSTD Boost::json Threads::Threads)
target_link_libraries(larder_cache_store PUBLIC larder_cache_device larder_cache_protocol
    PRIVATE larder_base_server ${LMDB_LIBRARY})
target_link_libraries(larder_cache_shard PUBLIC larder_cache_store larder_cache_remote larder_base
    PRIVATE larder_base_server PkgConfig::ZSTD OpenSSL::Crypto Threads::Threads)
target_link_libraries(larder_cache_peers PUBLIC larder_cache_shard larder_cache_remote larder_base_server
    PRIVATE Boost::json CURL::libcurl Threads::Threads)
target_link_libraries(larder_cache_control PUBLIC larder_cache_peers larder_cache_shard larder_cache_dataset larder_base_server larder_allocator_protocol
    PRIVATE Boost::json Threads::Threads)
target_compile_definitions(larder_cache_control PRIVATE LARDER_VERSION="${PROJECT_VERSION}")

larder_library(allocator)
target_link_libraries(larder_allocator PUBLIC larder_base larder_allocator_protocol PRIVATE PkgConfig::CLP)
larder_library(allocator/service)
target_link_libraries(larder_allocator_service PUBLIC larder_allocator larder_base_server
    PRIVATE Boost::json OpenSSL::Crypto ${LMDB_LIBRARY} Threads::Threads)

larder_library(scheduler)
larder_library(scheduler/placement)
larder_library(scheduler/cells)
larder_library(scheduler/policies)
larder_library(scheduler/simulator)
# Running jobs: the queue, its drivers, and the processes of jobs.
larder_library(scheduler/live)
larder_library(scheduler/engines)
target_link_libraries(larder_scheduler_live PUBLIC larder_scheduler larder_scheduler_policies larder_allocator_service
    larder_base_server PRIVATE Boost::json)
target_link_libraries(larder_scheduler_engines PUBLIC larder_scheduler_live PRIVATE Boost::json)
# Running jobs through a cluster manager whose agent is another process.
larder_library(scheduler/engines/agent)
target_link_libraries(larder_scheduler_engines_agent PUBLIC larder_scheduler_live larder_allocator_service larder_base_server PRIVATE Boost::json)
# Following the jobs of Slurm.
larder_library(scheduler/engines/slurm)
target_link_libraries(larder_scheduler_engines_slurm PUBLIC larder_base_server larder_allocator_protocol PRIVATE Boost::json)
target_link_libraries(larder_scheduler PUBLIC larder_allocator larder_base_server)
target_link_libraries(larder_scheduler_placement PUBLIC larder_scheduler)
target_link_libraries(larder_scheduler_cells PUBLIC larder_scheduler_placement PRIVATE tomlplusplus::tomlplusplus)
target_link_libraries(larder_scheduler_policies PUBLIC larder_scheduler PRIVATE PkgConfig::CLP PkgConfig::CBC)
target_link_libraries(larder_scheduler_simulator PUBLIC larder_scheduler_policies larder_scheduler_cells
    PRIVATE larder_base_server tomlplusplus::tomlplusplus Boost::json)

add_library(larder_cache INTERFACE)
target_link_libraries(larder_cache INTERFACE larder_cache_control)
add_library(larder::cache ALIAS larder_cache)

# Shared by tests and benches: the linear programs and the LRU that the allocator and the simulator are compared with,
# and nodes with networks of their own.
if(LARDER_BENCH OR LARDER_TESTS)
    larder_library(tests/oracle)
    target_link_libraries(larder_tests_oracle PRIVATE PkgConfig::CLP)
    larder_library(tests/cluster)
    target_link_libraries(larder_tests_cluster PUBLIC larder_base_server PRIVATE Boost::json Threads::Threads)
endif()
if(LARDER_BENCH)
    larder_library(bench)
    target_link_libraries(larder_bench PUBLIC larder_tools_cli larder_tools_simulate larder_loader larder_cache_shard larder_cache_dataset larder_allocator
        larder_allocator_service larder_tests_cluster larder_tests_oracle larder_scheduler_live
        PRIVATE Boost::json PkgConfig::LIBARCHIVE Threads::Threads)
    find_package(benchmark REQUIRED)
    add_executable(larder-microbench bench/micro/hot_paths.cc)
    target_link_libraries(larder-microbench PRIVATE larder_loader larder_cache_shard benchmark::benchmark)
    add_executable(larder-bench bench/program/larder-bench.cc)
    target_link_libraries(larder-bench PRIVATE larder_bench)
    add_executable(larder-minimal-fuse bench/program/larder-minimal-fuse.cc)
    target_compile_features(larder-minimal-fuse PRIVATE cxx_std_23)
    target_link_libraries(larder-minimal-fuse PRIVATE PkgConfig::FUSE3)
endif()
if(LARDER_SANITIZE)
    # No test waits for these parts, and optimising their libraries' templates takes most of a sanitizer's build.
    foreach(part base_server cache_dataset cache_remote cache_peers cache_control allocator_service scheduler_live
            scheduler_engines bench)
        if(TARGET larder_${part})
            target_compile_options(larder_${part} PRIVATE -O0)
        endif()
    endforeach()
endif()
add_subdirectory(tools)
if(LARDER_TESTS)
    enable_testing()
    find_package(GTest REQUIRED)
    add_subdirectory(tests)
endif()
