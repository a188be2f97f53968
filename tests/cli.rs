//! The command line, held against recorded transcripts: every refusal with its words and status,
//! and the help of every command.

#[test]
fn transcripts() {
    trycmd::TestCases::new().case("tests/cmd/*.md");
}
