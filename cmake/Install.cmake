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
install(TARGETS larderd larder-allocator larder-check-lmdb larder-runner larder-slurm larder larder-simulate larder-mount RUNTIME)
# The units name the installed programs' paths, which are known only at install time.
install(CODE "set(units ${CMAKE_CURRENT_SOURCE_DIR}/tools)")
install(CODE [[
    foreach(unit larderd.service larder-allocator.service larder-slurm.service)
        file(READ ${units}/${unit} text)
        string(REPLACE /usr/bin/ ${CMAKE_INSTALL_PREFIX}/bin/ text "${text}")
        set(path ${CMAKE_INSTALL_PREFIX}/lib/systemd/system/${unit})
        message(STATUS "Installing: $ENV{DESTDIR}${path}")
        file(WRITE $ENV{DESTDIR}${path} "${text}")
    endforeach()
]])
install(FILES tools/larderd.example.toml tools/larder-allocator.example.toml tools/larder-allocator-jobs.conf
    tools/larder-cells.example.toml tools/grafana-dashboard.json DESTINATION ${CMAKE_INSTALL_DATADIR}/larder/examples)
# Slurm finds burst_buffer.lua beside slurm.conf, and the other two by slurm.conf.
install(FILES scheduler/engines/slurm/burst_buffer.lua scheduler/engines/slurm/job_submit.lua tools/larder-slurm.example.toml
    DESTINATION ${CMAKE_INSTALL_DATADIR}/larder/slurm)
install(PROGRAMS scheduler/engines/slurm/prolog scheduler/engines/slurm/epilog scheduler/engines/slurm/task_prolog
    DESTINATION ${CMAKE_INSTALL_DATADIR}/larder/slurm)
install(FILES tools/simulate/plot_simulation.py DESTINATION ${CMAKE_INSTALL_DATADIR}/larder/tools/simulate)
if(LARDER_BENCH)
    install(TARGETS larder-bench RUNTIME)
    file(GLOB scripts CONFIGURE_DEPENDS bench/*.py)
    install(FILES ${scripts} DESTINATION ${CMAKE_INSTALL_DATADIR}/larder/bench)
endif()
