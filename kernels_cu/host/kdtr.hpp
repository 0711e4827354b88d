// kdtr.hpp: read a KDTR file (named arrays and a JSON header; format: docs/kdtr.md) in C++17.
//
//   kdtr::File file;
//   if (kdtr::Error error = kdtr::read("golden.kdtr", file)) {
//       std::fprintf(stderr, "%s\n", error.message.c_str());
//       return static_cast<int>(error.code);
//   }
//   const kdtr::Array* ids = file.find("ids");
//   if (ids && ids->as<int32_t>()) consume(ids->as<int32_t>(), ids->size());
//
// One header, standard library only, no exceptions of its own.  It refuses whatever the Python reader
// refuses: JSON, sizes, places, checksums and padding are checked before the data is given out, and all
// but the data itself before the one large allocation.
#ifndef KDTR_HPP
#define KDTR_HPP

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kdtr.hpp gives out little-endian data in place: it needs a little-endian machine"
#endif

namespace kdtr {

enum class Code {
    ok = 0,         // also the exit code to use
    io = 1,         // missing, unreadable or no regular file
    foreign = 2,    // not a KDTR file
    version = 3,    // of a newer major version
    truncated = 4,  // shorter than it says
    corrupt = 5,    // checksum, padding, or bytes too many
    header = 6,     // JSON or description of an array at fault
    memory = 7,     // no memory for the data
};

struct Error {
    Code code = Code::ok;
    std::string message;
    explicit operator bool() const { return code != Code::ok; }
};

struct Array {
    std::string name, dtype;          // dtype: "int32", "bfloat16", ... as in Python
    std::vector<uint64_t> shape;      // C order; empty for a scalar
    uint64_t offset = 0, bytes = 0;   // place in the file
    uint32_t crc32 = 0;
    const unsigned char* data = nullptr;  // aligned to 64 bytes; lives as long as its File

    uint64_t size() const {
        uint64_t n = 1;
        for (uint64_t axis : shape) n *= axis;
        return n;
    }
    // The data as T, or null if that is not its dtype.  For float16, bfloat16 and float8, which C++17 lacks,
    // ask for uint16_t or uint8_t and get the bits.
    template <class T> const T* as() const {
        const std::string bits = std::to_string(8 * sizeof(T));
        bool fits = false;
        if (std::is_same<T, bool>::value) fits = dtype == "bool";
        else if (std::is_floating_point<T>::value) fits = dtype == "float" + bits;
        else if (std::is_signed<T>::value) fits = dtype == "int" + bits;
        else if (sizeof(T) == 2) fits = dtype == "uint16" || dtype == "float16" || dtype == "bfloat16";
        else if (sizeof(T) == 1) fits = dtype == "uint8" || dtype.compare(0, 7, "float8_") == 0;
        else fits = dtype == "uint" + bits;
        return fits ? reinterpret_cast<const T*>(data) : nullptr;
    }
};

struct File {
    unsigned major = 0, minor = 0;
    std::string header_json;    // the user's header, as it stands in the file
    std::vector<Array> arrays;  // in the order of the file
    const Array* find(const std::string& name) const {
        for (const Array& array : arrays)
            if (array.name == name) return &array;
        return nullptr;
    }
    struct Free {
        void operator()(unsigned char* p) const { ::operator delete[](p, std::align_val_t(64)); }
    };
    std::unique_ptr<unsigned char[], Free> storage;
};

namespace detail {

constexpr uint64_t kPreamble = 32, kAlign = 64, kMaxHeader = 4u << 20, kMaxBytes = (uint64_t(1) << 63) - 1;
constexpr int kMaxDepth = 64, kMaxAxes = 32;

inline uint64_t align(uint64_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

// CRC-32 as in zlib (polynomial 0xEDB88320, reflected), eight bytes a step.
inline uint32_t crc32(const unsigned char* data, uint64_t size, uint32_t seed = 0) {
    struct Table {
        uint32_t t[8][256];
        Table() {
            for (uint32_t i = 0; i < 256; ++i) {
                uint32_t c = i;
                for (int k = 0; k < 8; ++k) c = (c >> 1) ^ (0xEDB88320u & (0u - (c & 1u)));
                t[0][i] = c;
            }
            for (int j = 1; j < 8; ++j)
                for (int i = 0; i < 256; ++i) t[j][i] = (t[j - 1][i] >> 8) ^ t[0][t[j - 1][i] & 255u];
        }
    };
    static const Table table;
    const auto& t = table.t;
    uint32_t c = ~seed;
    for (; size >= 8; size -= 8, data += 8) {
        uint32_t lo, hi;
        std::memcpy(&lo, data, 4);
        std::memcpy(&hi, data + 4, 4);
        lo ^= c;
        c = t[7][lo & 255u] ^ t[6][lo >> 8 & 255u] ^ t[5][lo >> 16 & 255u] ^ t[4][lo >> 24] ^
            t[3][hi & 255u] ^ t[2][hi >> 8 & 255u] ^ t[1][hi >> 16 & 255u] ^ t[0][hi >> 24];
    }
    for (; size; --size) c = (c >> 8) ^ t[0][(c ^ *data++) & 255u];
    return ~c;
}

inline uint64_t item_size(const std::string& dtype) {
    static const struct { const char* name; uint64_t size; } known[] = {
        {"bool", 1}, {"int8", 1}, {"int16", 2}, {"int32", 4}, {"int64", 8}, {"uint8", 1}, {"uint16", 2},
        {"uint32", 4}, {"uint64", 8}, {"float16", 2}, {"float32", 4}, {"float64", 8}, {"bfloat16", 2},
        {"float8_e4m3fn", 1}, {"float8_e5m2", 1}};
    for (const auto& k : known)
        if (dtype == k.name) return k.size;
    return 0;
}

inline bool good_name(const std::string& name) {
    if (name.empty() || name.size() > 128 || name[0] == '-' || name[0] == '.') return false;
    return name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
           std::string::npos;
}

// Strict JSON: every function consumes one value and returns false, with a reason, at the first fault.
class Json {
public:
    explicit Json(const std::string& text) : s_(text) {}
    std::string reason;

    size_t position() const { return i_; }
    size_t at() {  // where the next value starts
        space();
        return i_;
    }
    bool done() { return at() == s_.size() || fail("text after the end"); }

    template <class F> bool object(F on_key) {
        std::set<std::string> keys;
        return list('{', '}', [&] {
            std::string key;
            if (!string(key)) return false;
            if (!keys.insert(key).second) return fail("a key is given twice");
            return (eat(':') || fail("wanted ':'")) && on_key(key);
        });
    }
    template <class F> bool array(F on_item) { return list('[', ']', on_item); }

    bool string(std::string& out) {
        if (!eat('"')) return fail("wanted a string");
        out.clear();
        while (i_ < s_.size() && s_[i_] != '"') {
            const unsigned char c = s_[i_++];
            if (c < 0x20) return fail("control character in a string");
            if (c != '\\') {
                out += static_cast<char>(c);
                continue;
            }
            const char e = i_ < s_.size() ? s_[i_++] : '\0';
            static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
            const char* known = e ? std::strchr(from, e) : nullptr;
            if (known) out += to[known - from];
            else if (e != 'u' || !unicode(out)) return fail("bad escape");
        }
        return i_++ < s_.size() || fail("string does not end");
    }
    bool count(uint64_t& out) {  // an integer in [0, 2^63)
        space();
        const size_t start = i_;
        if (!number()) return false;
        out = 0;
        for (size_t k = start; k < i_; ++k) {
            if (s_[k] < '0' || s_[k] > '9' || out > (kMaxBytes - (s_[k] - '0')) / 10)
                return fail("wanted an integer in [0, 2^63)");
            out = out * 10 + (s_[k] - '0');
        }
        return true;
    }
    bool skip() {
        space();
        const char c = i_ < s_.size() ? s_[i_] : '\0';
        std::string ignored;
        if (c == '{') return object([&](const std::string&) { return skip(); });
        if (c == '[') return array([&] { return skip(); });
        if (c == '"') return string(ignored);
        for (const char* word : {"true", "false", "null"})
            if (s_.compare(i_, std::strlen(word), word) == 0) { i_ += std::strlen(word); return true; }
        return number();
    }
    bool fail(const char* why) {
        if (reason.empty()) reason = std::string(why) + " at byte " + std::to_string(kPreamble + i_);
        return false;
    }

private:
    const std::string& s_;
    size_t i_ = 0;
    int depth_ = 0;

    void space() {
        while (i_ < s_.size() && (s_[i_] == ' ' || s_[i_] == '\t' || s_[i_] == '\n' || s_[i_] == '\r')) ++i_;
    }
    bool eat(char c) {
        space();
        if (i_ >= s_.size() || s_[i_] != c) return false;
        ++i_;
        return true;
    }
    template <class F> bool list(char open, char close, F item) {
        if (!eat(open)) return fail(open == '{' ? "wanted an object" : "wanted a list");
        if (++depth_ > kMaxDepth) return fail("nested deeper than 64 levels");
        if (!eat(close)) {
            do {
                if (!item()) return fail("bad value");
            } while (eat(','));
            if (!eat(close)) return fail("wanted ',' or the end of a list or object");
        }
        --depth_;
        return true;
    }
    bool hex(uint32_t& code) {
        code = 0;
        for (int k = 0; k < 4; ++k, ++i_) {
            static const char digits[] = "0123456789abcdef0123456789ABCDEF";
            const char* digit = i_ < s_.size() && s_[i_] ? std::strchr(digits, s_[i_]) : nullptr;
            if (!digit) return false;
            code = code << 4 | static_cast<uint32_t>((digit - digits) % 16);
        }
        return true;
    }
    bool unicode(std::string& out) {  // after "\u"; joins surrogate pairs, so that equal keys compare equal
        uint32_t code, low;
        if (!hex(code)) return false;
        const size_t here = i_;
        if (code >> 10 == 0x36 && s_.compare(i_, 2, "\\u") == 0) {
            i_ += 2;
            if (!hex(low)) return false;
            if (low >> 10 == 0x37) code = 0x10000 + ((code & 0x3FF) << 10 | (low & 0x3FF));
            else i_ = here;
        }
        const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
        out += static_cast<char>(lead[more] | code >> 6 * more);
        for (int k = more - 1; k >= 0; --k) out += static_cast<char>(0x80 | (code >> 6 * k & 0x3F));
        return true;
    }
    bool number() {
        space();
        const size_t start = i_;
        const auto digits = [&] {
            const size_t from = i_;
            while (i_ < s_.size() && s_[i_] >= '0' && s_[i_] <= '9') ++i_;
            return i_ > from;
        };
        const auto next = [&](const char* any) {
            return i_ < s_.size() && s_[i_] && std::strchr(any, s_[i_]);
        };
        if (next("-")) ++i_;
        if (next("0")) ++i_;
        else if (!digits()) return fail("wanted a JSON value");
        if (next(".") && (++i_, !digits())) return fail("bad number");
        if (next("eE")) {
            ++i_;
            if (next("+-")) ++i_;
            if (!digits()) return fail("bad number");
        }
        const std::string text = s_.substr(start, i_ - start);
        const bool real = text.find_first_of(".eE") != std::string::npos;
        return !(real && std::isinf(std::strtod(text.c_str(), nullptr))) || fail("number is out of range");
    }
};

inline bool parse_array(Json& json, Array& a) {
    unsigned seen = 0;  // bit per field
    uint64_t crc = 0;
    const bool read = json.object([&](const std::string& key) {
        static const char* const known[] = {"name", "dtype", "shape", "offset", "bytes", "crc32"};
        unsigned k = 0;
        while (k < 6 && key != known[k]) ++k;
        seen |= 1u << k;
        switch (k) {
            case 0: return json.string(a.name);
            case 1: return json.string(a.dtype);
            case 2: return json.array([&] { a.shape.push_back(0); return json.count(a.shape.back()); });
            case 3: return json.count(a.offset);
            case 4: return json.count(a.bytes);
            case 5: return json.count(crc);
            default: return json.skip();  // a newer minor version's
        }
    });
    a.crc32 = static_cast<uint32_t>(crc);
    if (!read) return false;
    if ((seen & 63u) != 63u) return json.fail("array without name, dtype, shape, offset, bytes or crc32");
    if (!good_name(a.name)) return json.fail("array name with other than letters, digits, '_', '-', '.'");
    if (crc >> 32 || a.shape.size() > kMaxAxes) return json.fail("crc32 or number of axes out of range");
    return true;
}

// Check type, size and place of an array; `end` is where it has to start, and then where it ended.
inline const char* check_array(const Array& a, uint64_t& end, uint64_t file_bytes) {
    uint64_t span = item_size(a.dtype);
    if (!span) return "unknown dtype";
    bool empty = false;
    for (uint64_t axis : a.shape) {
        if (!axis) empty = true;
        else if (span > kMaxBytes / axis) return "shape does not fit 63-bit addressing";
        else span *= axis;
    }
    if (a.bytes != (empty ? 0 : span)) return "bytes do not fit dtype and shape";
    if (a.offset % kAlign) return "offset is not a multiple of 64";
    if (a.offset > file_bytes || a.bytes > file_bytes - a.offset) return "ends past the end of the file";
    if (a.offset < end) return "overlaps what stands before it";
    if (a.offset > end) return "leaves bytes before it that belong to no array";
    end = align(a.offset + a.bytes);
    return nullptr;
}

// Fill `file` from the header's text; returns the fault, empty if there is none.
inline std::string parse_header(const std::string& text, uint64_t file_bytes, File& file) {
    for (unsigned char c : text)
        if (c > 0x7F) return "not ASCII (other characters are written as \\u escapes)";
    Json json(text);
    bool have_arrays = false, have_header = false;
    const bool read = json.object([&](const std::string& key) {
        const size_t start = json.at();
        if (key == "header") {
            have_header = json.object([&](const std::string&) { return json.skip(); });
            file.header_json = text.substr(start, json.position() - start);
            return have_header;
        }
        if (key != "arrays") return json.skip();
        return have_arrays = json.array([&] {
            file.arrays.emplace_back();
            return parse_array(json, file.arrays.back());
        });
    }) && json.done();
    if (!read) return json.reason;
    if (!have_arrays || !have_header) return "wanted a list 'arrays' and an object 'header'";
    std::set<std::string> names;
    uint64_t end = align(kPreamble + text.size());
    for (const Array& a : file.arrays) {
        const bool first = names.insert(a.name).second;
        const char* fault = first ? check_array(a, end, file_bytes) : "name is given twice";
        if (fault) return "array '" + a.name + "': " + fault;
    }
    return end == file_bytes ? "" : "bytes after the last array";
}

// Check data and padding of one array; returns the fault or null.
inline const char* verify(const Array& a) {
    if (crc32(a.data, a.bytes) != a.crc32) return "corrupt: bad checksum";
    for (uint64_t i = a.bytes; i < align(a.bytes); ++i)
        if (a.data[i]) return "corrupt: padding after it is not zero";
    for (uint64_t i = 0; a.dtype == "bool" && i < a.bytes; ++i)
        if (a.data[i] > 1) return "corrupt: a bool is neither 0 nor 1";
    return nullptr;
}

}  // namespace detail

// Read a file; on error `file` holds nothing to rely on.  check_data = false skips the checksums of arrays.
inline Error read(const std::string& path, File& file, bool check_data = true) {
    using namespace detail;
    const auto error = [&](Code code, const std::string& what) { return Error{code, path + ": " + what}; };
    file = File();
    std::error_code ec;
    if (!std::filesystem::is_regular_file(path, ec)) return error(Code::io, "missing, or no regular file");
    const uint64_t size = std::filesystem::file_size(path, ec);
    std::ifstream in(path, std::ios::binary);
    if (ec || !in) return error(Code::io, "cannot be read");

    unsigned char p[kPreamble] = {};
    in.read(reinterpret_cast<char*>(p), kPreamble);
    const uint64_t got = static_cast<uint64_t>(in.gcount());
    static const unsigned char magic[8] = {0xD1, 'K', 'D', 'T', 'R', '\r', '\n', 0x1A};
    if (!got || std::memcmp(p, magic, got < 8 ? got : 8)) return error(Code::foreign, "is no KDTR file");
    if (got < kPreamble) return error(Code::truncated, "truncated in its first 32 bytes");
    uint32_t header_bytes, zero, crc;
    uint64_t file_bytes;
    file.major = p[8] | p[9] << 8;
    file.minor = p[10] | p[11] << 8;
    std::memcpy(&header_bytes, p + 12, 4);
    std::memcpy(&file_bytes, p + 16, 8);
    std::memcpy(&zero, p + 24, 4);
    std::memcpy(&crc, p + 28, 4);
    if (file.major > 1) return error(Code::version, "is of a newer KDTR version, this reads 1.x");
    if (file.major < 1 || zero) return error(Code::corrupt, "bad version or reserved field");
    if (header_bytes > kMaxHeader) return error(Code::header, "header is larger than 4 MiB");
    const uint64_t data_start = align(kPreamble + header_bytes);
    if (size < file_bytes || size < kPreamble + header_bytes) return error(Code::truncated, "truncated");
    if (size > file_bytes) return error(Code::corrupt, "bytes after the end");

    std::string text(header_bytes, '\0');
    char padding[kAlign] = {};
    in.read(&text[0], header_bytes);
    if (!in || crc32(reinterpret_cast<const unsigned char*>(text.data()), header_bytes, crc32(p, 28)) != crc)
        return error(Code::corrupt, "header is corrupt: bad checksum");
    in.read(padding, static_cast<std::streamsize>(data_start - kPreamble - header_bytes));
    for (char c : padding)
        if (c) return error(Code::corrupt, "padding after the header is not zero");
    const std::string fault = parse_header(text, size, file);
    if (!fault.empty()) return error(Code::header, fault);

    const uint64_t bytes = size - data_start;  // the last array ends the file: parse_header checked it
    file.storage.reset(static_cast<unsigned char*>(
        ::operator new[](bytes ? bytes : kAlign, std::align_val_t(kAlign), std::nothrow)));
    if (!file.storage) return error(Code::memory, "no memory for " + std::to_string(bytes) + " bytes");
    in.read(reinterpret_cast<char*>(file.storage.get()), static_cast<std::streamsize>(bytes));
    if (!in) return error(Code::truncated, "became shorter while it was read");
    for (Array& a : file.arrays) {
        a.data = file.storage.get() + (a.offset - data_start);
        const char* bad = check_data ? verify(a) : nullptr;
        if (bad) return error(Code::corrupt, "array '" + a.name + "': " + bad);
    }
    return {};
}

}  // namespace kdtr
#endif  // KDTR_HPP
