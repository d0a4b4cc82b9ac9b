#include "tools/doctor/finding.h"

#include <utility>

namespace larder::doctor {

std::string_view name(Verdict verdict) {
    switch (verdict) {
        case Verdict::good: return "good";
        case Verdict::to_do: return "to do";
        case Verdict::not_checked: return "not checked";
    }
    return "";
}

boost::json::object Finding::json() const {
    boost::json::object object{{"check", check}, {"verdict", name(verdict)}, {"found", found}, {"values", values}};
    if (!subject.empty()) object["subject"] = subject;
    if (!advice.empty()) object["advice"] = advice;
    return object;
}

Finding to_do(Finding finding, std::string found, std::string advice) {
    finding.verdict = Verdict::to_do;
    finding.found = std::move(found);
    finding.advice = std::move(advice);
    return finding;
}

}  // namespace larder::doctor
