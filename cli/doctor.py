"""`bana doctor`: what is wrong with this machine or installation, and what to do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bana.cli.options import AsJson, ConfigFile, Settings, load_settings

if TYPE_CHECKING:
    from sglang_bana.cluster.finding import Finding


def doctor(*, json_: AsJson = False, config: ConfigFile = None, set_: Settings = None) -> int:
    """Examine SGLang, device, memory, disk, ports, models, store; 0 fine, 1 warnings, 2 bad."""
    import msgspec

    from sglang_bana.cluster.doctor import examine, worst_status

    loaded = load_settings(config, set_, {})
    findings = examine(loaded.config, os.environ)
    if json_:
        print(msgspec.json.format(msgspec.json.encode(findings)).decode())
    else:
        for finding in findings:
            _print_finding(finding)
    return worst_status(findings)


def _print_finding(finding: Finding) -> None:
    print(f"{finding.severity:<7} {finding.name}: {finding.evidence}")
    if finding.cause:
        print(f"        likely cause: {finding.cause}")
    if finding.remedy:
        print(f"        change: {finding.remedy}")
