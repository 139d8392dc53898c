package session_test

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// A countingHandler counts lines.
type countingHandler struct{ n atomic.Int64 }

func (h *countingHandler) logger() *slog.Logger { return slog.New(h) }

func (h *countingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *countingHandler) Handle(context.Context, slog.Record) error { h.n.Add(1); return nil }

func (h *countingHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h *countingHandler) WithGroup(string) slog.Handler { return h }
