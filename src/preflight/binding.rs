//! How a drive is bound: one answer, which `bind` carries out and `doctor` predicts.

use nvpoll_host::{Drive, Host, HostError, TakeOptions, UserDriver};

/// What the user said of how a drive is to be bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindWish {
    /// The kernel's driver; without one the best is chosen.
    pub driver: Option<UserDriver>,
    /// A drive that no IOMMU keeps from this machine's memory may be taken.
    pub allow_no_iommu: bool,
}

/// How a drive would be handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The kernel's driver for it.
    pub driver: UserDriver,
    /// Why this one.
    pub why: String,
    /// How it is taken.
    pub options: TakeOptions,
}

/// Whether `nvpoll bind` would hand this drive over, and how. Nothing is changed.
///
/// # Errors
/// Why not, in the words with which `bind` refuses.
pub fn may_bind(host: &Host, drive: &Drive, wish: &BindWish) -> Result<Binding, HostError> {
    let options = TakeOptions {
        persistent: true,
        allow_no_iommu: wish.allow_no_iommu,
        ..TakeOptions::default()
    };
    let (driver, why) = match wish.driver {
        Some(driver) => (driver, "asked for".to_owned()),
        None => host.choose_driver(drive, &options)?,
    };
    host.may_take(drive, driver, &options)?;
    Ok(Binding { driver, why, options })
}
