//! Where a PCI function lives.

use core::fmt;
use core::str::FromStr;

/// The PCI class code of an NVM Express I/O controller: mass storage, non-volatile memory,
/// programming interface 02h (NVMe over PCIe; §2.1.5 of the specification).
pub const CLASS_NVME: u32 = 0x01_08_02;

/// A PCI function's address, written `0000:01:00.0` as in sysfs and `lspci -D`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Domain (segment); wider than 16 bits behind some host bridges (VMD).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

/// Text that is not a PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseAddressError;

impl fmt::Display for ParseAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a PCI address is written 0000:01:00.0 (domain:bus:device.function, in hex)")
    }
}

impl core::error::Error for ParseAddressError {}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl FromStr for PciAddress {
    type Err = ParseAddressError;

    /// Reads `0000:01:00.0`, and `01:00.0` as domain 0.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (rest, function) = text.rsplit_once('.').ok_or(ParseAddressError)?;
        let (rest, device) = rest.rsplit_once(':').ok_or(ParseAddressError)?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        let hex = |text: &str, digits: usize, most: u32| {
            let fits = (1..=digits).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let value = fits.then(|| u32::from_str_radix(text, 16).ok()).flatten();
            value.filter(|&value| value <= most).ok_or(ParseAddressError)
        };
        Ok(Self {
            domain: hex(domain, 8, u32::MAX)?,
            bus: hex(bus, 2, 0xff)? as u8,
            device: hex(device, 2, 31)? as u8,
            function: hex(function, 1, 7)? as u8,
        })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for PciAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for PciAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = PciAddress;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&ParseAddressError, f)
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PciAddress, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn text_round_trips() {
        for text in ["0000:01:00.0", "10000:e1:1f.7", "ffff:ff:00.1"] {
            assert_eq!(text.parse::<PciAddress>().map(|a| a.to_string()).as_deref(), Ok(text));
        }
        assert_eq!("01:00.0".parse(), "0000:01:00.0".parse::<PciAddress>());
    }

    #[test]
    fn other_text_is_refused() {
        for text in
            ["", ".", "1:2", "0000:01:00", "0000:01:20.0", "0000:01:00.8", "+0:01:00.0", "x:0:0.0"]
        {
            assert!(text.parse::<PciAddress>().is_err(), "{text:?} was taken");
        }
    }
}
