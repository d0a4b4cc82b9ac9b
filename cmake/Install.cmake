# The files `cmake --install` installs: programs, their scripts, units and examples. Training jobs in C++ get the loader
# as the CMake package `larder` with one target, larder::loader.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(libraries larder_base larder_cache_protocol larder_loader_formats larder_loader)
foreach(library ${libraries})
    string(REGEX REPLACE "^larder_" "" name ${library})
    set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
endforeach()
install(TARGETS ${libraries} EXPORT larder ARCHIVE COMPONENT loader)
# A header is included by its path from the repository's root, both installed and in the tree.
foreach(header loader/larder.h base/error.h cache/protocol/element_type.h cache/protocol/take_log.h)
    cmake_path(GET header PARENT_PATH folder)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/larder/${folder} COMPONENT loader)
endforeach()
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/larder)
install(EXPORT larder NAMESPACE larder:: DESTINATION ${package} COMPONENT loader)
configure_package_config_file(cmake/larderConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/larderConfig.cmake
    INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/larderConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/larderConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/larderConfigVersion.cmake
    DESTINATION ${package} COMPONENT loader)

if(LARDER_CLIENT_ONLY)
    return()
endif()
# Each component is a Debian package: see cmake/Package.cmake.
set(larder_programs larder larder-simulate larder-mount larder-check-lmdb)
if(LARDER_BENCH)
    list(APPEND larder_programs larder-bench)
    file(GLOB scripts CONFIGURE_DEPENDS bench/*.py)
    install(FILES ${scripts} DESTINATION ${CMAKE_INSTALL_DATADIR}/larder/bench COMPONENT larder)
    install(DIRECTORY bench/dlio/workload DESTINATION ${CMAKE_INSTALL_DATADIR}/larder/bench/dlio COMPONENT larder)
endif()
install(TARGETS ${larder_programs} RUNTIME COMPONENT larder)
install(TARGETS larderd RUNTIME COMPONENT larderd)
install(TARGETS larder-allocator larder-runner RUNTIME COMPONENT larder-allocator)
install(TARGETS larder-slurm RUNTIME COMPONENT larder-slurm)
# The units name the installed programs' paths, which are known only at install time.
foreach(name larderd larder-allocator larder-slurm)
    install(CODE "set(unit ${CMAKE_CURRENT_SOURCE_DIR}/tools/${name}.service)" COMPONENT ${name})
    install(CODE [[
        file(READ ${unit} text)
        string(REPLACE /usr/bin/ ${CMAKE_INSTALL_PREFIX}/bin/ text "${text}")
        cmake_path(GET unit FILENAME name)
        set(path ${CMAKE_INSTALL_PREFIX}/lib/systemd/system/${name})
        message(STATUS "Installing: $ENV{DESTDIR}${path}")
        file(WRITE $ENV{DESTDIR}${path} "${text}")
    ]] COMPONENT ${name})
endforeach()
set(examples ${CMAKE_INSTALL_DATADIR}/larder/examples)
install(FILES tools/grafana-dashboard.json DESTINATION ${examples} COMPONENT larder)
file(GLOB scripts CONFIGURE_DEPENDS loader/python/examples/*.py)
install(FILES ${scripts} DESTINATION ${examples}/python COMPONENT larder)
install(FILES tools/larderd.example.toml DESTINATION ${examples} COMPONENT larderd)
install(FILES tools/larder-allocator.example.toml tools/larder-allocator-jobs.conf tools/larder-cells.example.toml
    DESTINATION ${examples} COMPONENT larder-allocator)
# Slurm finds burst_buffer.lua beside slurm.conf, and the other two by slurm.conf.
set(slurm ${CMAKE_INSTALL_DATADIR}/larder/slurm)
install(FILES scheduler/engines/slurm/burst_buffer.lua scheduler/engines/slurm/job_submit.lua tools/larder-slurm.example.toml
    DESTINATION ${slurm} COMPONENT larder-slurm)
install(PROGRAMS scheduler/engines/slurm/prolog scheduler/engines/slurm/epilog scheduler/engines/slurm/task_prolog
    DESTINATION ${slurm} COMPONENT larder-slurm)
# Made by tools/CMakeLists.txt. bash-completion looks for a file named as the program.
install(DIRECTORY ${CMAKE_BINARY_DIR}/manual/man1 ${CMAKE_BINARY_DIR}/manual/man8 DESTINATION ${CMAKE_INSTALL_MANDIR}
    COMPONENT larder)
foreach(program larder larderd larder-allocator larder-slurm)
    install(FILES ${CMAKE_BINARY_DIR}/manual/larder.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
        RENAME ${program} COMPONENT larder)
    install(FILES ${CMAKE_BINARY_DIR}/manual/larder.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
        RENAME ${program}.fish COMPONENT larder)
endforeach()
install(FILES ${CMAKE_BINARY_DIR}/manual/_larder DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT larder)
install(FILES tools/simulate/plot_simulation.py DESTINATION ${CMAKE_INSTALL_DATADIR}/larder/tools/simulate COMPONENT larder)
include(cmake/Package.cmake)
