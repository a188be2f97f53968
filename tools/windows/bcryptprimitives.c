/* The one function of Windows' bcryptprimitives.dll that Rust's standard library imports. Wine before
   9.0 lacks this library, and no program made by Rust would start without it. */
#include <windows.h>

/* RtlGenRandom, as advapi32.dll exports it. */
BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG bytes);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE buffer, SIZE_T bytes)
{
    const SIZE_T most = 1 << 24;
    while (bytes > 0) {
        ULONG part = (ULONG)(bytes < most ? bytes : most);
        if (!SystemFunction036(buffer, part))
            return FALSE;
        buffer += part;
        bytes -= part;
    }
    return TRUE;
}
