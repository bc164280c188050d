"""What starts one vLLM engine with NIXL: the words of its command and the variables of its environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .ports import HOST

Role = Literal["prefill", "decode", "mixed"]
Device = Literal["cpu", "cuda"]

DETACHED = "detached"
"""In place of the id of the process with which an engine ends: it ends with none."""


@dataclass(frozen=True)
class EngineOptions:
    """What may differ between engines.

    Attributes:
        block_size: tokens in a KV block; a multiple of 32 on the CPU.
        num_blocks: KV blocks that requests can use; vLLM keeps one more for itself. None: as many as fit.
        max_model_len: tokens of a prompt and its output together; None: what the model allows.
        max_num_seqs: requests that run at the same time; None: vLLM's own number.
        lease_s: seconds that a prefill engine keeps KV blocks for a decode leg, whole.
        kv_load_failure_policy: what a decode engine does when a pull fails: answer with an error, or prefill itself.
        dtype: of weights and KV. With float32 engines of all kinds choose the same tokens.
        arguments: further arguments of vLLM.
        device: what computes.
        gpus: that it sees, by their numbers on this machine; for cuda. None: what this process sees.
        tensor_parallel: GPUs over which the model is spread.
        enforce_eager: no graphs of the step are captured; on the CPU there are none.
        max_num_batched_tokens: tokens of a step; None: vLLM's own number.
    """

    block_size: int = 32
    num_blocks: int | None = 128
    max_model_len: int | None = 2048
    max_num_seqs: int | None = 64
    lease_s: int = 30
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    dtype: str = "float32"
    arguments: tuple[str, ...] = ()
    device: Device = "cpu"
    gpus: tuple[int, ...] | None = None
    tensor_parallel: int = 1
    enforce_eager: bool = True
    max_num_batched_tokens: int | None = None


@dataclass(frozen=True)
class VllmCommand:
    """One engine before it is started.

    Attributes:
        role: prefill and decode engines pass KV through NIXL, a mixed one does not.
        model: folder of the model, or its name on the hub.
        name: under which the model is served.
        port: of the HTTP server.
        side_channel_port: for the other engines' NIXL.
        options: the rest.
    """

    role: Role
    model: str
    name: str
    port: int
    side_channel_port: int
    options: EngineOptions

    def words(self, python: Path, ends_with: int | None) -> list[str]:
        """The words that start it.

        Args:
            python: of the environment that vLLM is installed in (`installation.engine_python`).
            ends_with: id of the process that starts it, with which it is to end; None: with none.
        """
        options = self.options
        words = [str(python), str(Path(__file__).with_name("engine_process.py"))]
        words += [DETACHED if ends_with is None else str(ends_with)]
        words += ["--model", self.model, "--served-model-name", self.name, "--dtype", options.dtype]
        words += ["--host", HOST, "--port", str(self.port)]
        words += ["--enforce-eager"] if options.enforce_eager else []
        words += ["--block-size", str(options.block_size)]
        for flag, value in (
            ("--max-model-len", options.max_model_len),
            ("--max-num-seqs", options.max_num_seqs),
            ("--max-num-batched-tokens", options.max_num_batched_tokens),
            ("--num-gpu-blocks-override", None if options.num_blocks is None else options.num_blocks + 1),
            ("--tensor-parallel-size", options.tensor_parallel if options.tensor_parallel > 1 else None),
        ):
            words += [] if value is None else [flag, str(value)]
        words += ["--enable-request-id-headers", "--enable-prompt-tokens-details"]
        if self.role != "mixed":
            transfer = {
                "kv_connector": "NixlConnector",
                "kv_role": "kv_producer" if self.role == "prefill" else "kv_consumer",
                "kv_buffer_device": options.device,
                "kv_load_failure_policy": options.kv_load_failure_policy,
                "kv_connector_extra_config": {"kv_lease_duration": options.lease_s},
            }
            words += ["--kv-transfer-config", json.dumps(transfer)]
        return [*words, *options.arguments]

    def environment(self) -> dict[str, str]:
        """The variables that it needs beside those of this process."""
        needed = {
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_channel_port),
        }
        if self.options.device == "cpu":
            needed |= {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
                "VLLM_SLEEP_WHEN_IDLE": "1",
                "UCX_TLS": "tcp,self,sm",
                "UCX_NET_DEVICES": "lo",
            }
        if self.options.gpus is not None:
            needed |= {"CUDA_VISIBLE_DEVICES": ",".join(map(str, self.options.gpus))}
        if Path(self.model).is_dir():
            needed |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        return needed


HIDDEN_VARIABLES = ("PYTHONPATH", "VIRTUAL_ENV")
"""Variables of this process that would mislead the engines' own Python."""
