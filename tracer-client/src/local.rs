//! Addresses of static variables of this crate, from code that is inlined into other crates.
//!
//! The compiler loads such an address from the global offset table, a cache line more at each
//! request. The symbols are made hidden, so that any linker resolves them.

/// Returns the address of a static variable.
#[cfg(target_arch = "x86_64")]
macro_rules! address {
    ($name:path: $type:ty) => {{
        let address: *const $type;
        // SAFETY: the assembly requires
        // - a symbol that is linked into the same library or program: a static of this crate;
        // - declared effects: it writes one register only.
        unsafe {
            std::arch::asm!(
                ".hidden {symbol}",
                "lea {address}, [rip + {symbol}]",
                address = out(reg) address,
                symbol = sym $name,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        address
    }};
}

#[cfg(not(target_arch = "x86_64"))]
macro_rules! address {
    ($name:path: $type:ty) => {
        &raw const $name
    };
}

pub(crate) use address;
