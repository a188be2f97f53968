//! Preconditioning on drives: refused without leave, and then every block of each is written, by workers of
//! one drive and of several.

use crate::machine::Lab;
use serde_json::Value;
use std::fs;

const BYTES: usize = 16 << 20;

/// The second comparison has a worker that both drives share.
const SCRIPT: &str = r#"
    a=$(drive D0 address); b=$(drive D1 address); cd /mnt/out
    s=0; nvpoll compare $a --engines vfio --precondition --json no.json 2>refused || s=$?
    echo "refused: $s"; cat refused; test ! -e no.json
    s=0; nvpoll compare $a $b --engines vfio --precondition --destroy-data D0 2>refused || s=$?
    echo "the other one: $s"; cat refused
    echo "untouched: $(md5sum <$(drive D0 node) | cut -c-32) $(md5sum <$(drive D1 node) | cut -c-32)"
    nvpoll compare $a $b --engines vfio --drives-per-worker 2 --precondition --destroy-data D0 --destroy-data D1 \
      --rw randread --bs 4k --iodepth 4 --rounds 1 --ramp-time 0 --runtime 100ms --json result.json
    echo "after: $(drive D0 driver) $(drive D1 driver)"
"#;

#[test]
fn every_block_of_each_drive_is_written_and_none_without_leave() {
    let lab = Lab::new();
    let out = lab.path("out");
    fs::create_dir(&out).unwrap();
    let images = ["D0", "D1"].map(|serial| lab.path(&format!("{serial}.raw")));
    for image in &images {
        fs::write(image, vec![0; BYTES]).unwrap();
    }
    let lab = lab.with("--share", &format!("{}:/mnt/out", out.display()));
    let lab = images.iter().enumerate().fold(lab, |lab, (number, path)| {
        lab.drive(&format!("serial=D{number},image={}", path.display()))
    });
    let ran = lab.sh(SCRIPT);
    ran.is_fine();
    let says = |what: &str| assert!(ran.stdout.contains(what), "{what}: {}", ran.stdout);
    says("refused: 3\n");
    says("the other one: 3\n");
    says("--destroy-data");
    // What 16 MiB of zeros come to.
    let zeros = "2c7ab85a893283e98c931e9511add182";
    says(&format!("untouched: {zeros} {zeros}\n"));
    says("after: nvme nvme\n");
    for image in &images {
        let content = fs::read(image).unwrap();
        assert_eq!(content.len(), BYTES);
        let empty = content.chunks(4096).filter(|block| block.iter().all(|byte| *byte == 0));
        assert_eq!(empty.count(), 0, "{}: blocks that were never written", image.display());
    }
    let result: Value =
        serde_json::from_str(&fs::read_to_string(out.join("result.json")).unwrap()).unwrap();
    assert_eq!((&result["complete"], &result["rows"][0]["errors"]), (&true.into(), &0.into()));
    let marks = result["marks"].as_array().unwrap();
    let mark = marks.iter().find(|mark| mark["kind"] == "preconditioned").expect("it is said");
    let text = mark["text"].as_str().unwrap();
    assert!(text.contains("2 sequential writes of the whole range, then "), "{text}");
    println!("checked: preconditioning of two drives of one worker: {text}");
}
