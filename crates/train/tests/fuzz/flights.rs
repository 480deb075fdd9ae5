//! Readers of flight recorders.

use std::fs;

use unisono::status::{Dump, Flight};

use crate::mutate::Corpus;
use crate::reader::Reader;

/// Returns two dumps of rank 1 of two: one in which it waits in its second call, and one without calls.
fn dumps() -> [String; 2] {
    let record = |sequence: u64, rest: &str| {
        format!(
            "{{\"sequence\":{sequence},\"operation\":\"all-reduce\",\"dtype\":\"f32\",\"count\":1000,\"op\":\"sum\",\
             \"root\":null,\"algorithm\":\"ring\",\"label\":\"bucket 2\",\"phase\":0,\"step\":2,\"began_s_ago\":61.5,{rest}}}"
        )
    };
    let done = record(0, "\"stage\":\"done\",\"waits_for\":null,\"ended_s_ago\":61.25");
    let running = record(1, "\"stage\":\"running\",\"waits_for\":0,\"ended_s_ago\":null");
    let dump = |state: &str, last: &str, records: &str| {
        format!(
            "{{\"rank\":1,\"ranks\":2,\"why\":\"asked for\",\"at_unix_s\":1.8e9,\"failed\":{{\"rank\":0,\"cause\":\"it \
             panicked\"}},\"doing\":{{\"rank\":1,\"host\":\"node\",\"process_id\":70,\"state\":\"{state}\",\"since_s\":61.0,\
             \"quiet\":null,\"last\":{last}}},\"records\":[{records}]}}"
        )
    };
    [dump("inside", &running, &format!("{done},{running}")), dump("not-yet", "null", "")]
}

pub fn reader() -> Reader {
    let words = [
        "null",
        "\"quiet\"",
        "\"left\"",
        "\"outside\"",
        "\"failed\"",
        "true",
        "[]",
        "{}",
        "\"label\"",
        "1e308",
    ];
    let corpus = Corpus::new(dumps().map(String::into_bytes).into(), Vec::leak(words.to_vec()));
    let folder = tempfile::tempdir().unwrap();
    let of_rank_0 =
        dumps()[0].replace("\"rank\":1,", "\"rank\":0,").replace("\"waits_for\":0", "\"waits_for\":1");
    fs::write(folder.path().join("rank-0.json"), of_rank_0).unwrap();
    let read = Box::new(move |input: &[u8]| {
        fs::write(folder.path().join("rank-1.json"), input).unwrap();
        let flight = Flight::read(folder.path()).map_err(|error| error.to_string())?;
        drop((flight.findings(), flight.table()));
        let dump = Dump::from_json(input).expect("what is read in a folder is read alone");
        let again = Dump::from_json(&serde_json::to_vec(&dump).unwrap());
        assert_eq!(again.as_ref(), Ok(&dump));
        Ok(())
    });
    Reader { name: "flight recorders", short: 4_000, bound_bytes: 64 << 20, corpus, read }
}
