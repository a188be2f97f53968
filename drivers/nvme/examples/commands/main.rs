//! Sends each of the rarer commands to a drive on vfio-pci and checks what it did.
//! **What is on the drive is lost.** `commands ADDRESS SERIAL`; for the lab's drives.

#[cfg(target_os = "linux")]
mod vfio;
#[cfg(target_os = "linux")]
mod zones;

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    vfio::check()
}

#[cfg(not(target_os = "linux"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    Err("it takes a drive through VFIO, which Linux alone has".into())
}
