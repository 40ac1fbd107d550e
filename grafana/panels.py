"""The panels of the board, as data: what each answers, its unit, its expressions and legends.

build.py lays them out; tests prove that each expression returns something.
"""

from __future__ import annotations

from dataclasses import dataclass

from grafana.queries import buckets, by, of, own, per_iteration, quantile, quantiles, rate, total


@dataclass(frozen=True)
class Panel:
    """One picture: expressions with their legends, and the question it answers."""

    title: str
    answers: str
    unit: str
    expressions: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    stacked: bool = False
    width: int = 8


@dataclass(frozen=True)
class Row:
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


WORK_SECONDS = f"(sum({rate('host_seconds_total')}) + sum({rate('exec_seconds_total')}))"
JUDGED = f"sum({rate('slo_requests_total', verdict='met|missed')})"

COMMITS = f"sum({own('store_commits_total')})"
BUDGET = of("engine_config", setting="max_num_batched_tokens|chunked_prefill_size")
SLOTS = of("engine_config", setting="max_num_seqs|max_running_requests")
STARTED_MS = f"1000 * {of('engine_start_time_seconds')}"
JOIN_VERSION = "on (engine, dp_rank, model_name, role) group_left (version, config_hash)"

# a table: one panel a paragraph
# fmt: off
NOW = (
    Panel("Engines up", "How many engines hold their ring.", "short", (
        total(of("engine_up"), "up"),
    ), kind="stat", width=4),
    Panel("Running and waiting",
          "Requests after the last decision, and all that arrived and did not finish.",
          "short", (
        total(of("running_requests"), "running"),
        total(of("waiting_requests"), "waiting"),
        total(of("live_requests"), "live"),
    ), kind="stat", width=8),
    Panel("Goodput", "Requests that met every term of their SLO.", "reqps", (
        total(rate("slo_requests_total", verdict="met"), "met"),
    ), kind="stat", width=4),
    Panel("Output", "Tokens emitted.", "short", (
        total(rate("output_tokens_total"), "tokens/s"),
    ), kind="stat", width=4),
    Panel("Since the last completion",
          "Requests waiting while this grows: the engine is wedged.",
          "s", (
        (f"max(time() - {of('last_completion_timestamp_seconds')})", "oldest"),
    ), kind="stat", width=4),
)
BATCHES = (
    Panel("Tokens per iteration",
          "What was in each batch: mean tokens by phase, stacked, under the token budget.",
          "short", (
        (per_iteration(f"sum by (phase) ({rate('scheduled_tokens_total')})"), "{{phase}}"),
        (f"max({BUDGET})", "budget"),
    ), stacked=True),
    Panel("Batch tokens",
          "The distribution of tokens in one iteration: a mean hides that prefills come in bursts.",
          "short", buckets("batch_tokens"), kind="heatmap"),
    Panel("Requests in a batch",
          "Members of one iteration, beside the most that the engine may run.",
          "short", (
        *quantiles("batch_requests", 0.5, 0.99),
        (f"sum({rate('member_steps_total')}) / sum({rate('iterations_total')})", "mean"),
        (f"max({SLOTS})", "most"),
    )),
    Panel("Iterations",
          "Completed iterations by phase, and decisions that scheduled nothing.",
          "cps", (
        by("phase", rate("iterations_total")),
        total(rate("empty_schedules_total"), "empty schedules"),
    ), stacked=True),
    Panel("Special tokens",
          "Work done twice after preemption, work saved by the cache, drafts on speculation.",
          "short", (
        total(rate("recomputed_tokens_total"), "recomputed/s"),
        total(rate("cached_tokens_total"), "from the cache/s"),
        total(rate("draft_tokens_total"), "drafts/s"),
    )),
)
TIME = (
    Panel("Iteration interval",
          "How long each iteration took: host and execution between successive completions.",
          "s", buckets("iteration_interval_seconds"), kind="heatmap"),
    Panel("Interval by phase, p99",
          "Whether it is the prefill in the batch that makes iterations long.",
          "s", (
        (quantile(0.99, "iteration_interval_seconds", "phase"), "{{phase}}"),
    )),
    Panel("Where the engine's time goes",
          "Share of wall time: batches ran, host work before dispatch, nobody there.",
          "percentunit", (
        total(rate("exec_seconds_total"), "exec"),
        total(rate("host_seconds_total"), "host"),
        total(rate("idle_seconds_total"), "idle"),
    ), stacked=True),
    Panel("Time between tokens",
          "What a reader of the stream feels, token by token.",
          "s", quantiles("time_between_tokens_seconds", 0.5, 0.9, 0.99)),
    Panel("Time to first token",
          "Arrival in the scheduler to the first token, and the part of it that is queueing.",
          "s", (
        *quantiles("time_to_first_token_seconds", 0.5, 0.99),
        (quantile(0.99, "queue_duration_seconds"), "queue p99"),
    )),
    Panel("Request duration",
          "Arrival to the last token.",
          "s", quantiles("request_duration_seconds", 0.5, 0.99)),
    Panel("Scheduler call",
          "CPU time in the scheduler: a part of host time that grows with the queue.",
          "s", quantiles("schedule_duration_seconds", 0.5, 0.99)),
)
LEFT_OUT = (
    Panel("Waiting, by reason",
          "Requests that wait at a time, by why decisions leave them out. Alert on this one.",
          "short", (
        by("reason", rate("deferred_seconds_total")),
    ), stacked=True),
    Panel("Deferrals per decision",
          "Requests left out of one decision; it freezes when the engine is wedged.",
          "short", (
        (per_iteration(f"sum by (reason) ({rate('deferrals_total')})"), "{{reason}}"),
    ), stacked=True),
    Panel("Requests that had to wait",
          "Requests left out at least once for a reason, beside all arrivals.",
          "reqps", (
        by("reason", rate("deferred_requests_total")),
        total(rate("requests_arrived_total"), "arrived"),
    )),
    Panel("Preemptions", "Running requests that lost their place.", "cps", (
        total(rate("preemptions_total"), "preemptions"),
    )),
    Panel("KV given up by preemption", "Computed KV tokens that must be computed again.", "short", (
        total(rate("preemption_lost_tokens_total"), "tokens/s"),
    )),
)
KV = (
    Panel("KV blocks by state",
          "Where the pages went; used, evictable and free sum to the total.",
          "short", (
        by("state", of("kv_blocks")),
    ), stacked=True),
    Panel("KV used, share",
          "Full means KV-bound; far from full while requests wait means something else binds.",
          "percentunit", (
        (f"sum({of('kv_blocks', state='used')}) / sum({of('kv_blocks')})", "used"),
    )),
    Panel("KV waste", "Token slots of the last, partly filled block of each request.", "short", (
        total(of("kv_waste_tokens"), "tokens"),
    )),
)
USEFUL = (
    Panel("Goodput beside throughput",
          "Requests that arrived, that left, and that met their SLO.",
          "reqps", (
        total(rate("requests_arrived_total"), "arrived"),
        total(rate("requests_finished_total", reason="stop|length"), "finished"),
        total(rate("slo_requests_total", verdict="met"), "goodput"),
    )),
    Panel("On-time tokens beside all tokens",
          "The gap is work that came too late to be of use.",
          "short", (
        total(rate("output_tokens_total"), "output/s"),
        (by("slo", rate("on_time_tokens_total"))[0], "on time/s ({{slo}})"),
    )),
    Panel("Attainment", "Met among those that reached met or missed.", "percentunit", (
        (f"sum({rate('slo_requests_total', verdict='met')}) / ({JUDGED} > 0)", "met / judged"),
    )),
    Panel("Verdicts",
          "Failed, shed and cancelled requests are neither met nor missed: they are shown.",
          "reqps", (
        by("verdict", rate("slo_requests_total")),
    ), stacked=True),
    Panel("Which term was missed", "First token too late, or a gap too long.", "reqps", (
        by("term", rate("slo_missed_total")),
    )),
    Panel("Ends by reason", "Every arrival gets exactly one.", "reqps", (
        by("reason", rate("requests_finished_total")),
    ), stacked=True),
)
TRUTH = (
    Panel("Observer's share of the interval",
          "What batchscope costs the engine: beyond 1 % it takes itself away.",
          "percentunit", (
        (f"sum({rate('observer_duration_seconds_sum')}) / ({WORK_SECONDS} > 0)", "share"),
    )),
    Panel("Observer per iteration",
          "Our own time on the engine's thread.",
          "s", quantiles("observer_duration_seconds", 0.5, 0.99)),
    Panel("Audit",
          "Laws put to the test against independent facts; violations must stay at 0.",
          "cps", (
        total(rate("audit_checks_total"), "checks"),
        by("law", rate("audit_violations_total")),
    )),
    Panel("Lost or doubtful",
          "What could not be read, resolved or believed. Anything above 0 makes figures partial.",
          "cps", (
        total(rate("lost_records_total"), "records lost"),
        total(rate("lost_iterations_total"), "iterations lost"),
        total(rate("rejected_records_total"), "places rejected"),
        total(rate("unresolved_members_total"), "members unresolved"),
        total(rate("clamped_durations_total"), "durations clamped"),
    )),
    Panel("Notices", "What adapters said about themselves.", "cps", (
        by("kind", rate("notices_total")),
    )),
    Panel("Attached",
          "When adapters attached, and the engine's version: a step is a restart.",
          "dateTimeAsIso", (
        (f"{STARTED_MS} * {JOIN_VERSION} {of('engine_info')}", "{{engine}} {{version}}"),
    ), kind="stat"),
)
EXPORTER = (
    Panel("Pipeline lag", "Age of the newest completed iteration when it was folded.", "s", (
        ("max(batchscope_pipeline_lag_seconds)", "lag"),
    )),
    Panel("Store", "1 while it takes rows; and how long a commit takes.", "short", (
        ("min(batchscope_store_up)", "up"),
        (f"sum({own('store_commit_seconds_total')}) / ({COMMITS} > 0)", "s per commit"),
    )),
    Panel("Store size and queue",
          "Used blocks on disk, and rows that wait for the store in memory.",
          "bytes", (
        ("sum(batchscope_store_bytes)", "store"),
        ("sum(batchscope_store_queue_bytes)", "queue"),
    )),
    Panel("Rows stored", "By table.", "short", (
        (f"sum by (table) ({own('stored_rows_total')})", "{{table}}/s"),
    ), stacked=True),
    Panel("Spans, faults, rings",
          "Spans by what became of them, faults of isolated parts, ring files by state.",
          "short", (
        (f"sum by (result) ({own('spans_total')})", "spans {{result}}/s"),
        (f"sum by (part) ({own('collector_errors_total')})", "faults {{part}}/s"),
        ("sum by (state) (batchscope_rings)", "rings {{state}}"),
    )),
    Panel("Scrape", "Time that each part of the last scrape took.", "s", (
        ("sum by (part) (batchscope_collector_duration_seconds)", "{{part}}"),
    )),
)
DEVICES = (
    Panel("Device busy",
          "A busy device beside bad goodput is the picture to look for.",
          "percentunit", (
        ("max by (device) (batchscope_gpu_sm_ratio)", "SM {{device}}"),
        ("max by (device) (batchscope_gpu_memory_busy_ratio)", "memory {{device}}"),
    )),
    Panel("Device memory", "In use, and all of it.", "bytes", (
        ("max by (device) (batchscope_gpu_memory_used_bytes)", "used {{device}}"),
        ("max by (device) (batchscope_gpu_memory_total_bytes)", "total {{device}}"),
    )),
    Panel("Power", "Draw.", "watt", (
        ("max by (device) (batchscope_gpu_power_watts)", "{{device}}"),
    )),
    Panel("SM clock", "Falls when the device throttles.", "hertz", (
        ("max by (device) (batchscope_gpu_sm_clock_hertz)", "{{device}}"),
    )),
    Panel("Temperature", "Of the device.", "celsius", (
        ("max by (device) (batchscope_gpu_temperature_celsius)", "{{device}}"),
    )),
)
# fmt: on
ROWS = (
    Row("Now", NOW),
    Row("What was in each batch?", BATCHES),
    Row("How long did it take, and why?", TIME),
    Row("Who was left out, and why?", LEFT_OUT),
    Row("Where did the KV pages go?", KV),
    Row("Was the work useful?", USEFUL),
    Row("Can these figures be trusted?", TRUTH),
    Row("The exporter", EXPORTER, collapsed=True),
    Row("Devices", DEVICES, collapsed=True),
)
UNUSED = {"build_info": "constant 1 with the version, for joins in ad-hoc queries"}
"""Metrics that no panel shows, and why."""
