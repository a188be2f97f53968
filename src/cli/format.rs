//! `format`: another LBA format for a namespace.

use super::Done;
use super::args::FormatArgs;
use super::out::{say, tell};
use crate::failure::Failure;
use crate::preflight::{self, Host, Subject, What};
use crate::workload::units::format_size;
use nvpoll_engine::format::{FormatChoice, Formatted};
use nvpoll_engine::{FormatWish, OpenOptions, Target};

/// Metadata of a format with protection information, where nothing else was asked for: that alone.
const PROTECTION_BYTES: u16 = 8;

/// `nvpoll format`
pub fn format(args: &FormatArgs) -> Done {
    let host = Host::system();
    let subject = Subject::resolve(&host, &args.target)?;
    let (target, done) = match &subject.what {
        What::Soft(options) => {
            tell!("{} is new for each command: nothing lasts of what is done to it", args.target);
            let target = Target::Soft(options.clone());
            (args.target.clone(), send(args, &target, 1)?)
        }
        #[cfg(target_os = "linux")]
        What::Drive { drive, nsid } => {
            let named = format!("{} namespace {nsid}", drive.address);
            (named, on_drive::format(args, &host, &subject, *nsid)?)
        }
        // Has no controller, or none that the userspace driver gets: this says so.
        _ => (args.target.clone(), send(args, &preflight::controller(&host, &subject)?, 1)?),
    };
    let Formatted { format, block_bytes, blocks } = done;
    let size = format_size(blocks.saturating_mul(u64::from(block_bytes)));
    say!("{target}: LBA format {format}, {blocks} blocks of {block_bytes} bytes ({size})")?;
    Ok(0)
}

/// Which format is meant.
fn choice(args: &FormatArgs) -> FormatChoice {
    let with_protection = if args.pi == 0 { 0 } else { PROTECTION_BYTES };
    match (args.block_size, args.lbaf) {
        (Some(bytes), _) => {
            FormatChoice::Blocks { bytes, metadata_bytes: args.ms.unwrap_or(with_protection) }
        }
        (None, Some(index)) => FormatChoice::Index(index),
        (None, None) => FormatChoice::Same,
    }
}

fn send(args: &FormatArgs, target: &Target, namespace: u32) -> Result<Formatted, Failure> {
    let options = OpenOptions {
        namespace,
        transport: args.transport.options(),
        quirks: args.transport.quirks,
        ..OpenOptions::default()
    };
    let wish = FormatWish {
        metadata_interleaved: args.extended,
        protection: args.pi,
        protection_first: args.pil,
        secure_erase: args.ses,
        ..FormatWish::default()
    };
    Ok(nvpoll_engine::format::format(target, &options, choice(args), wish)?)
}

/// A drive: asked for leave, taken from the kernel where that has it, and given back.
#[cfg(target_os = "linux")]
mod on_drive {
    use super::super::signals::on_signals;
    use super::{FormatArgs, Formatted, send};
    use crate::cli::out::tell;
    use crate::failure::Failure;
    use crate::preflight::{self, Host, Subject, TakeOptions};
    use crate::report::RoundResult;
    use crate::run::{Column, Control, Hands, HostHands, Live, Observer};
    use crate::workload::Workload;
    use nvpoll_engine::{EngineChoice, EngineKind, EngineOptions, OpenOptions};
    use std::sync::Arc;

    pub fn format(
        args: &FormatArgs,
        host: &Host,
        subject: &Subject,
        nsid: u32,
    ) -> Result<Formatted, Failure> {
        let control = Arc::new(Control::new());
        on_signals(
            &control,
            "a drive that is being formatted is waited for, then given back",
            "still waiting; a reset in the middle of a format can leave the namespace without one",
        )?;
        let allow_no_iommu = args.transport.unsafe_no_iommu;
        let options = TakeOptions { allow_no_iommu, ..TakeOptions::default() };
        let kind = userspace_kind(host, subject, &options)?;
        let column =
            Column { kind, options: EngineOptions::default(), subjects: vec![subject.clone()] };
        let mut hands = HostHands::new(host.clone(), options, true);
        hands.hold_bound(std::slice::from_ref(&column))?;
        let transport = args.transport.options();
        let opening =
            OpenOptions { transport, quirks: args.transport.quirks, ..OpenOptions::default() };
        let asked = [(kind, subject)];
        preflight::check_writes(host, &asked, &args.destroy_data, &opening, "formatting erases")?;
        hands.ready(&column, &mut Telling)?;
        let formatted = hands.targets(&column).and_then(|targets| {
            let (target, _) = targets.first().ok_or_else(|| Failure::failed("no target"))?;
            if control.is_stopped() {
                return Err(Failure::failed("stopped before anything was sent to the drive"));
            }
            tell!("formatting namespace {nsid}, at most 10 min");
            send(args, target, nsid)
        });
        let given_back = hands.give_back(&mut Telling);
        let formatted = formatted?;
        given_back?;
        Ok(formatted)
    }

    /// The userspace driver's engine that has the drive, or that would get it.
    fn userspace_kind(
        host: &Host,
        subject: &Subject,
        options: &TakeOptions,
    ) -> Result<EngineKind, Failure> {
        if subject.is_bound() {
            return Ok(preflight::choose_engine(subject).0);
        }
        let subjects = std::slice::from_ref(subject);
        let fitting = preflight::fitting_engines(host, subjects, options);
        let of_drives = |kind: &EngineKind| kind.info().driver.is_some();
        fitting.kinds.into_iter().find(of_drives).ok_or_else(|| {
            let why = fitting.left_out.join("; ");
            Failure::usage(format!(
                "{}: the userspace driver formats drives, and cannot have this one{}{why}; `nvpoll doctor` says what is missing",
                subject.name,
                if why.is_empty() { "" } else { ": " }
            ))
        })
    }

    /// Says what happens to the drive.
    struct Telling;

    impl Observer for Telling {
        fn begins(&mut self, _: u64, _: u32, _: EngineChoice, _: &Workload) {}
        fn live(&mut self, _: Live) {}
        fn doing(&mut self, what: &str) {
            tell!("{what}");
        }
        fn warn(&mut self, text: &str) {
            tell!("nvpoll: warning: {text}");
        }
        fn round_done(&mut self, _: &[RoundResult]) {}
    }
}
