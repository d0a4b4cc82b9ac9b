#pragma once

// A job that does not run yet, as given to `larder whatif --add-job`: the job's name, then its known properties.

#include <boost/json/object.hpp>

#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace larder::cli {

inline constexpr const char* kAddedJobForm =
    "NAME,dataset=NAME[,size=SIZE][,ideal=RATE][,gpus=N][,nodes=A+B][,weight=W][,epochs=N][,floor=RATE][,cap=RATE]";

// Parses the text into the form of the API's add_jobs. Errors: invalid_argument says which part is wrong.
Result<boost::json::object> parse_added_job(std::string_view text);

// Parses "+2TiB", "-500GiB" or "1TiB".
Result<std::int64_t> parse_signed_bytes(std::string_view text);

}  // namespace larder::cli
