# larder_library(FOLDER): a static library of the folder's own .cc files (not its subfolders'), named larder_<folder>
# with / as _. Every include is written from the repository's root.
function(larder_library folder)
    string(REPLACE "/" "_" name "larder_${folder}")
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc)
    add_library(${name} STATIC ${sources})
    target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/larder>)
    target_compile_features(${name} PUBLIC cxx_std_23)
    if(folder MATCHES "^(allocator|scheduler)")
        # Plans and simulations come out the same on every machine, whether or not it multiplies and adds in one step.
        target_compile_options(${name} PRIVATE -ffp-contract=off)
    endif()
    string(REPLACE "larder_" "larder::" alias ${name})
    if(NOT TARGET ${alias})
        add_library(${alias} ALIAS ${name})
    endif()
endfunction()

# larder_test(NAME FOLDER LIBRARIES...): one GoogleTest program of all *_test.cc in tests/<FOLDER>, each case a ctest case.
# Files are compiled several at a time: most of a test's compile time is GoogleTest's headers.
function(larder_test name folder)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.cc)
    if(NOT sources)
        return()
    endif()
    add_executable(${name} ${sources})
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON)
    target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
    target_link_libraries(${name} PRIVATE ${ARGN} larder_tests_support GTest::gmock GTest::gtest_main Threads::Threads)
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
endfunction()
