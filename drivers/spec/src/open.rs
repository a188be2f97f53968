//! Open enumerations: a newtype with named values, so that an unknown code survives.

/// Declares an open enumeration: a transparent newtype, a constant and a name for each known
/// value, and a `Display` that falls back to the number.
macro_rules! open_enum {
    ($(#[$meta:meta])* $vis:vis $name:ident: $int:ty {
        $($(#[$vmeta:meta])* $variant:ident = $value:expr, $text:literal;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        $vis struct $name(pub $int);

        impl $name {
            $($(#[$vmeta])* pub const $variant: Self = Self($value);)*

            /// The specification's name for this value, or `None` when it is not known here.
            pub const fn name(self) -> Option<&'static str> {
                $(if self.0 == Self::$variant.0 { return Some($text); })*
                None
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{} {:#x}", stringify!($name), self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{self} ({:#x})", self.0)
            }
        }
    };
}
pub(crate) use open_enum;
