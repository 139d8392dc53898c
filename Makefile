# Thin aliases; .ci/run is what decides.
.PHONY: check build test long demo ci

check: build test

build:
	go build ./...

test:
	go vet ./...
	go test -race ./...

long:
	go test -race -timeout 60m ./e2e ./wire/... ./services/network/... -args -long

demo:
	go run ./cmd/brokerd demo

ci:
	bash .ci/run
