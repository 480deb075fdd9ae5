//! Detects runs that are configured for several workers in the manner of TensorFlow.

use std::env;

use serde_json::Value;
use unisono::config::tf_config;

/// Rejects a single process whose `TF_CONFIG` names several workers. Each of them would train alone.
///
/// # Errors
/// The intended workers, and the command to start them.
pub(super) fn refuse_other_workers() -> Result<(), String> {
    let Some(text) = tf_config().filter(|text| !text.trim().is_empty()) else { return Ok(()) };
    let workers = workers(&text)?;
    if workers.len() < 2 {
        return Ok(());
    }
    let hosts: Vec<_> = workers.iter().map(|worker| host(worker)).collect();
    let arguments: Vec<_> = env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    Err(format!(
        "TF_CONFIG names {} workers ({}), but this is a world of one rank: start all of them with `mpirun -np {} --host {} unisono {}`, or \
         unset TF_CONFIG",
        workers.len(),
        workers.join(", "),
        workers.len(),
        hosts.join(","),
        arguments.join(" ")
    ))
}

/// Returns the addresses of the chief and of the workers, which are the processes that train.
fn workers(text: &str) -> Result<Vec<String>, String> {
    let wrong = |why: String| {
        format!(
            "TF_CONFIG is {text:?}: {why}; expected {{\"cluster\": {{\"worker\": [\"HOST:PORT\", …]}}, …}}, or no such variable"
        )
    };
    let config: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let cluster = config.as_object().ok_or_else(|| wrong("it is not an object".to_owned()))?.get("cluster");
    let mut workers = Vec::new();
    for job in ["chief", "worker"] {
        let Some(addresses) = cluster.and_then(|cluster| cluster.get(job)) else { continue };
        let addresses = addresses.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        let addresses: Vec<_> =
            addresses.ok_or_else(|| wrong(format!("{job} is not a list of addresses")))?;
        workers.extend(addresses.into_iter().map(str::to_owned));
    }
    Ok(workers)
}

/// Returns the address without the port, which has no meaning to `mpirun`.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chief_and_workers_train() {
        let config = r#"{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:2"], "ps": ["d:3"]}, "task": {"type": "worker", "index": 0}}"#;
        assert_eq!(workers(config).unwrap(), ["a:1", "b:1", "c:2"]);
        assert!(workers("{}").unwrap().is_empty());
        assert_eq!(["b:1", "[::1]:2", "c"].map(host), ["b", "[::1]", "c"]);
        for (config, why) in [
            ("{", "EOF"),
            ("[]", "it is not an object"),
            (r#"{"cluster": {"worker": "b:1"}}"#, "worker is not a list of addresses"),
            (r#"{"cluster": {"chief": [1]}}"#, "chief is not a list of addresses"),
        ] {
            let error = workers(config).unwrap_err();
            assert!(error.contains(why) && error.starts_with("TF_CONFIG is "), "{error}");
        }
    }
}
