"""What a result says about where it came from."""

from longtail.machine import commit


def test_a_copy_without_history_is_told_its_commit(monkeypatch):
    commit.cache_clear()
    monkeypatch.setenv("LONGTAIL_COMMIT", "0123456789ab")
    assert commit() == "0123456789ab"
    commit.cache_clear()
    monkeypatch.delenv("LONGTAIL_COMMIT")
    assert commit() != "0123456789ab"
    commit.cache_clear()
