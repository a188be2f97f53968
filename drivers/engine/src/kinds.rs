//! The list of engines: one line each.

use crate::{Engine, EngineInfo};
use std::fmt;
use std::str::FromStr;

/// What is to be done with an engine that is known only at run time: [`EngineKind::with`] calls it
/// with the engine's type, so that all below is compiled for that engine.
pub trait Visitor {
    /// What comes back.
    type Output;

    /// Called once, with the engine as `E`.
    fn visit<E: Engine>(self) -> Self::Output;
}

macro_rules! engines {
    ($($(#[$meta:meta])* $variant:ident => $engine:ty;)*) => {
        /// The engines of this build.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum EngineKind {
            $($(#[$meta])* #[doc = concat!("[`", stringify!($engine), "`]")] $variant,)*
        }

        impl EngineKind {
            /// All of them, in the order in which help and contract tests name them.
            pub const ALL: &[Self] = &[$($(#[$meta])* Self::$variant,)*];

            /// What is known without opening anything.
            pub const fn info(self) -> &'static EngineInfo {
                match self { $($(#[$meta])* Self::$variant => &<$engine>::INFO,)* }
            }

            /// The one dispatch of a run.
            pub fn with<V: Visitor>(self, visitor: V) -> V::Output {
                match self { $($(#[$meta])* Self::$variant => visitor.visit::<$engine>(),)* }
            }
        }
    };
}

engines! {
    Null => crate::null::Null;
    Soft => crate::userspace::Soft;
    #[cfg(target_os = "linux")]
    Vfio => crate::userspace::Vfio;
    #[cfg(target_os = "linux")]
    Uio => crate::userspace::Uio;
    #[cfg(target_os = "linux")]
    IoUring => crate::io_uring::IoUring;
    #[cfg(target_os = "linux")]
    IoUringCmd => crate::io_uring::passthrough::IoUringCmd;
    #[cfg(target_os = "linux")]
    Libaio => crate::libaio::Libaio;
    #[cfg(target_os = "linux")]
    Psync => crate::psync::Psync;
    #[cfg(windows)]
    Iocp => crate::windows::Iocp;
    #[cfg(windows)]
    IoRing => crate::windows::IoRing;
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.info().name)
    }
}

/// A name that is no engine of this build.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no engine is called \"{name}\"; this build has {}", names())]
pub struct UnknownEngine {
    /// What was asked for.
    pub name: String,
}

fn names() -> String {
    EngineKind::ALL.iter().map(|kind| kind.info().name).collect::<Vec<_>>().join(", ")
}

impl FromStr for EngineKind {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        Self::ALL
            .iter()
            .copied()
            .find(|kind| kind.info().name == name)
            .ok_or_else(|| UnknownEngine { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_are_unique() {
        for kind in EngineKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(*kind));
        }
        let error = "spdk".parse::<EngineKind>().unwrap_err().to_string();
        assert!(error.contains("spdk") && error.contains("null, soft"), "{error}");
    }
}
