// Read each file named on the command line and print what the C++ reader makes of it, one JSON object a line.
#include "kdtr.hpp"

#include <cinttypes>
#include <cmath>
#include <cstdio>

template <class T> static bool sum(const kdtr::Array& array, double& total) {
    const T* values = array.as<T>();
    for (uint64_t i = 0; values && i < array.size(); ++i) total += static_cast<double>(values[i]);
    return values != nullptr;
}

int main(int count, char** paths) {
    kdtr::Error last;
    for (int i = 1; i < count; ++i) {
        kdtr::File file;
        last = kdtr::read(paths[i], file);
        for (char& c : file.header_json)  // one line each: in JSON a line break is only ever white space
            if (c == '\n' || c == '\r') c = ' ';
        std::printf("{\"code\": %d, \"minor\": %u, \"arrays\": {", static_cast<int>(last.code), file.minor);
        const char* comma = "";
        for (const kdtr::Array& a : file.arrays) {
            if (last) break;
            double total = 0;
            const bool read = sum<bool>(a, total) || sum<int8_t>(a, total) || sum<int16_t>(a, total) ||
                              sum<int32_t>(a, total) || sum<int64_t>(a, total) || sum<uint8_t>(a, total) ||
                              sum<uint16_t>(a, total) || sum<uint32_t>(a, total) || sum<uint64_t>(a, total) ||
                              sum<float>(a, total) || sum<double>(a, total);
            std::printf("%s\"%s\": [\"%s\", [", comma, a.name.c_str(), a.dtype.c_str());
            for (size_t axis = 0; axis < a.shape.size(); ++axis)
                std::printf("%s%" PRIu64, axis ? ", " : "", a.shape[axis]);
            if (!std::isfinite(total)) total = 0;  // JSON has no word for it
            std::printf("], %.17g, %s]", total, read && file.find(a.name) == &a ? "true" : "false");
            comma = ", ";
        }
        std::printf("}, \"header\": %s}\n", last ? "null" : file.header_json.c_str());
        if (last) std::fprintf(stderr, "%s\n", last.message.c_str());
    }
    return static_cast<int>(last.code);
}
