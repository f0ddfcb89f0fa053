"""A real Ray cluster of two nodes."""

import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

from tests.kit.ray_cluster import ray_cluster
from tests.kit.token_files import make_documents, write_bin

from trimtab.corpus import ScanOptions, Summary, plan_scan, run_ray, scan


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cluster_gives_the_same_result_even_if_a_node_dies(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for seed in range(12):
        write_bin(corpus / f"{seed}.bin", make_documents(seed, count=400))
    plan = plan_scan([corpus], ScanOptions(separator=0), num_shards=12)
    expected = Summary(result=scan(plan, tmp_path / "here")).to_dict()
    with ray_cluster(2) as cluster:
        both = scan(plan, tmp_path / "both", runner=run_ray(cluster.address))
        assert Summary(result=both).to_dict() == expected

        def kill() -> None:
            time.sleep(0.5)
            cluster.kill_node(1)

        killer = threading.Thread(target=kill)
        killer.start()
        one = scan(plan, tmp_path / "one", runner=run_ray())
        killer.join()
        assert Summary(result=one).to_dict() == expected
