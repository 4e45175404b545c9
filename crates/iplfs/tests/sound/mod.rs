//! Full check of a device.

use std::sync::Arc;
use tuff_iplfs::{BlockDevice, CheckOptions, Report, check};

/// Verifies that a full check, including data, finds nothing on a device. `place` is part of the failure message.
pub(crate) fn sound(device: &Arc<dyn BlockDevice>, place: &str) -> Report {
    let all = CheckOptions {
        data: true,
        fallback: false,
    };
    let report = check(device, all).unwrap();
    assert_eq!(report.findings, [], "{place}");
    report
}
