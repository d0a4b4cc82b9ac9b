#include "cache/remote/s3_hint.h"

namespace larder::cache {
namespace {

std::string explain_denial(const S3RequestInfo& request) {
    const std::string bucket = "bucket " + std::string(request.bucket);
    if (!request.is_signed) return bucket + " is not public: add it with credentials, without --unsigned";
    std::string hint = "the credentials are valid, but may not do this: let the policy of " + bucket +
                       " allow s3:ListBucket and s3:GetObject, or use another --profile";
    if (!request.requester_pays) hint += "; a bucket whose readers pay needs --requester-pays";
    return hint;
}

std::string explain_region(const S3RequestInfo& request) {
    const std::string bucket = "bucket " + std::string(request.bucket);
    if (request.region.empty()) return bucket + " is in another region: give --region";
    return bucket + " is in region " + std::string(request.region) + ": give --region " + std::string(request.region);
}

}  // namespace

std::string s3_hint(int status, std::string_view code, const S3RequestInfo& request) {
    if (code == "NoSuchBucket") {
        return "there is no bucket " + std::string(request.bucket) + " at " + std::string(request.endpoint) +
               ": check the URL and --endpoint";
    }
    if (code == "InvalidAccessKeyId") {
        return "the server does not know this access key: check AWS_ACCESS_KEY_ID, --profile and --endpoint";
    }
    if (code == "SignatureDoesNotMatch") {
        return "the secret key does not belong to the access key: check AWS_SECRET_ACCESS_KEY and --profile";
    }
    if (code == "RequestTimeTooSkewed") {
        return "this machine's clock differs from the server's by more than 15 minutes: set it, as `timedatectl "
               "set-ntp true` does";
    }
    if (code == "ExpiredToken" || code == "InvalidToken" || code == "TokenRefreshRequired") {
        return "the session token has expired or is wrong: renew the daemon's credentials";
    }
    if (code == "AuthorizationHeaderMalformed" || code == "PermanentRedirect" || status == 301 || status == 307) {
        return explain_region(request);
    }
    if (status == 401 || status == 403) return explain_denial(request);
    return "";
}

}  // namespace larder::cache
