# larder_library(FOLDER): a static library of the folder's own .cc files (not its subfolders'), named larder_<folder>
# with / as _. Every include is written from the repository's root.
function(larder_library folder)
    string(REPLACE "/" "_" name "larder_${folder}")
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc)
    add_library(${name} STATIC ${sources})
    set_property(GLOBAL APPEND PROPERTY LARDER_LIBRARIES ${name})
    target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/larder>)
    target_compile_features(${name} PUBLIC cxx_std_23)
    if(folder MATCHES "^(allocator|scheduler)")
        # Fused multiply-add would make plans and simulations differ between machines.
        target_compile_options(${name} PRIVATE -ffp-contract=off)
    endif()
    # The coverage that libFuzzer needs, as the fuzz targets link these libraries. In the planner, recording the operands
    # of every comparison would take longer than planning.
    if(LARDER_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
        if(folder STREQUAL "allocator")
            target_compile_options(${name} PRIVATE -fsanitize-coverage=inline-8bit-counters,pc-table)
        elseif(folder MATCHES "^(base|cache|allocator/|scheduler/live$)")
            target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
        endif()
    endif()
    string(REPLACE "larder_" "larder::" alias ${name})
    if(NOT TARGET ${alias})
        add_library(${alias} ALIAS ${name})
    endif()
endfunction()

# larder_test(NAME FOLDER LIBRARIES...): one GoogleTest program of all *_test.cc in tests/<FOLDER>. ctest runs the
# program in N parts; each part runs every Nth test. A process per test would take as long to start as to run, and
# longer under the sanitizers. The results of a part's tests are in test-results/NAME.PART.xml. Several files are
# compiled as one: most of a test's compile time is GoogleTest's headers.
function(larder_test name folder)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.cc)
    if(NOT sources)
        return()
    endif()
    add_executable(${name} ${sources})
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON)
    # Tests do little work themselves: without optimisation clang compiles them in a third of the time, g++ no faster.
    set(debug_level $<IF:$<CXX_COMPILER_ID:Clang>,-O0,-O1>)
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1> $<$<CONFIG:Debug>:${debug_level}>)
    target_link_libraries(${name} PRIVATE ${ARGN} larder_tests_support GTest::gmock GTest::gtest_main Threads::Threads)
    set(parts 6)
    foreach(part RANGE 1 ${parts})
        math(EXPR index "${part} - 1")
        add_test(NAME ${name}.${part} COMMAND ${name})
        set(environment GTEST_TOTAL_SHARDS=${parts} GTEST_SHARD_INDEX=${index}
            GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/test-results/${name}.${part}.xml)
        set_tests_properties(${name}.${part} PROPERTIES ENVIRONMENT "${environment}" TIMEOUT 900)
    endforeach()
endfunction()
