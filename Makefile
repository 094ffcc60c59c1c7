# Everything here also runs without make; see scripts/.
.PHONY: demo test lint bench soak clean

demo:
	scripts/demo

test:
	scripts/test $(ARGS)

lint:
	scripts/setup test,lint
	.venv/bin/python -m ruff check .
	.venv/bin/python -m mypy

bench:
	scripts/setup test,lint
	for file in benchmarks/bench_*.py; do .venv/bin/python "$$file" || exit; done

soak:
	scripts/setup test,lint
	.venv/bin/python tests/race/judge.py --contenders 64 --devices 8 --acquisitions 20000 $(ARGS)
	.venv/bin/python tests/race/waiters.py --waiters 1000

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
