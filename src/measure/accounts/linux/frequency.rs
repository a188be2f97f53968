//! How fast the workers' processors ran: the kernel's cpufreq, looked at while a window is open.

use std::fs;
use std::path::Path;

/// Processors that are looked at, at most: a look costs some microseconds each.
const PROCESSORS_MAX: usize = 64;

/// Frequencies seen so far.
#[derive(Clone, Debug)]
pub struct Frequencies {
    files: Vec<std::path::PathBuf>,
    seen_mhz: Option<[u32; 2]>,
}

impl Frequencies {
    /// Of `processors`, in the system under `root`.
    pub fn new(root: &Path, processors: &[usize]) -> Self {
        let file = |cpu: &usize| {
            root.join(format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"))
        };
        let mut processors = processors.to_vec();
        processors.sort_unstable();
        processors.dedup();
        let files = processors.iter().take(PROCESSORS_MAX).map(file).collect();
        Self { files, seen_mhz: None }
    }

    /// Begins anew.
    pub fn forget(&mut self) {
        self.seen_mhz = None;
    }

    /// Looks once.
    pub fn look(&mut self) {
        for file in &self.files {
            let text = fs::read_to_string(file).ok();
            let khz = text.and_then(|text| text.trim().parse::<u32>().ok());
            let Some(mhz) = khz.map(|khz| khz / 1000).filter(|mhz| *mhz > 0) else { continue };
            let [low, high] = self.seen_mhz.unwrap_or([mhz; 2]);
            self.seen_mhz = Some([low.min(mhz), high.max(mhz)]);
        }
    }

    /// Lowest and highest that was seen, in MHz.
    ///
    /// # Errors
    /// Why none was, in words.
    pub fn seen_mhz(&self) -> Result<[u32; 2], String> {
        self.seen_mhz.ok_or_else(|| match self.files.is_empty() {
            true => "no worker has a processor of its own".to_owned(),
            false => "the kernel names no frequency of the workers' processors (cpufreq), as in most virtual machines".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(root: &Path, cpu: usize, khz: &str) {
        let folder = root.join(format!("sys/devices/system/cpu/cpu{cpu}/cpufreq"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("scaling_cur_freq"), khz).unwrap();
    }

    #[test]
    fn the_extremes_of_the_workers_own_processors() {
        let root = tempfile::tempdir().unwrap();
        (0..4).for_each(|cpu| set(root.path(), cpu, "2400000\n"));
        set(root.path(), 3, "400000\n");
        let mut seen = Frequencies::new(root.path(), &[1, 0, 1]);
        seen.look();
        assert_eq!(seen.seen_mhz(), Ok([2400, 2400]), "processor 3 is nobody's");
        set(root.path(), 1, "3600123\n");
        seen.look();
        set(root.path(), 0, "1800000\n");
        seen.look();
        assert_eq!(seen.seen_mhz(), Ok([1800, 3600]));
    }

    #[test]
    fn what_is_not_said_is_not_known() {
        let root = tempfile::tempdir().unwrap();
        for text in ["", "<unknown>\n", "0\n", "-1\n"] {
            set(root.path(), 0, text);
            let mut seen = Frequencies::new(root.path(), &[0, 7]);
            seen.look();
            assert!(seen.seen_mhz().unwrap_err().contains("cpufreq"), "{text:?}");
        }
        let none = Frequencies::new(root.path(), &[]);
        assert!(none.seen_mhz().unwrap_err().contains("no worker"));
    }
}
