// kernels.h: the table of kernels: host_scan.py finds names, the compiler adds sizes and how to call each.
#ifndef KD_HOST_KERNELS_H
#define KD_HOST_KERNELS_H

namespace kd_host {

struct Kernel {
    const char *name, *parameters;  // parameters: names, separated by commas
    int count;
    const unsigned* sizes;
    const unsigned char* pointers;  // 1 where the parameter is a pointer
    void (*call)(void** arguments);
    Kernel* next;
};

inline Kernel*& kernel_list()
{
    static Kernel* first = nullptr;
    return first;
}

template <class T> struct IsPointer { static constexpr unsigned char value = 0; };
template <class T> struct IsPointer<T*> { static constexpr unsigned char value = 1; };
template <class T> struct IsPointer<T* const> { static constexpr unsigned char value = 1; };
template <class T> struct Plain { using type = T; };
template <class T> struct Plain<const T> { using type = T; };

template <int... I> struct Indices {};
template <int N, int... I> struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I> struct MakeIndices<0, I...> { using type = Indices<I...>; };

template <class... P>
struct Signature {
    static_assert((sizeof(P) + ... + 0) <= 4096, "parameters of a kernel are at most 4096 bytes");
    static constexpr unsigned sizes[sizeof...(P) + 1] = {unsigned(sizeof(P))..., 0};
    static constexpr unsigned char pointers[sizeof...(P) + 1] = {IsPointer<P>::value..., 0};

    template <void (*kernel)(P...), int... I>
    static void unpack(void** arguments, Indices<I...>)
    {
        (void)arguments;
        kernel(*static_cast<typename Plain<P>::type*>(arguments[I])...);
    }
    template <void (*kernel)(P...)>
    static void call(void** arguments) { unpack<kernel>(arguments, typename MakeIndices<sizeof...(P)>::type()); }
};

template <class F> struct SignatureOf;
template <class... P> struct SignatureOf<void (*)(P...)> { using type = Signature<P...>; };

struct Registration {
    explicit Registration(Kernel& kernel)
    {
        kernel.next = kernel_list();
        kernel_list() = &kernel;
    }
};

}  // namespace kd_host

#define KD_HOST_KERNEL(name, names)                                                              \
    static kd_host::Kernel kd_kernel_##name = {                                                  \
        #name, names, int(sizeof(kd_host::SignatureOf<decltype(&name)>::type::sizes) / sizeof(unsigned)) - 1, \
        kd_host::SignatureOf<decltype(&name)>::type::sizes,                                      \
        kd_host::SignatureOf<decltype(&name)>::type::pointers,                                   \
        kd_host::SignatureOf<decltype(&name)>::type::call<&name>, nullptr};                      \
    static kd_host::Registration kd_registration_##name(kd_kernel_##name);

#endif
