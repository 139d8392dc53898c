package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairlead-dev/fairlead/broker"
	"github.com/fairlead-dev/fairlead/internal/pace"
)

// Bounds of the HTTP server, which anybody who reaches it may try.
const (
	path          = "/metrics"
	headerTime    = 2 * time.Second  // for a request's header, and the request
	answerTime    = 10 * time.Second // for a request and its answer
	maxHeader     = 8 << 10          // bytes of a request's header
	maxConns      = 64               // connections at a time; a further one waits in the listener's queue. Each is for one request, so nobody keeps a place
	maxInFlight   = 4                // requests at a time; a further one is answered with 503
	shutdownGrace = time.Second      // for requests in flight when the broker stops
)

// Serve answers requests for the metrics of a broker at a listener, which it closes, until ctx ends.
func Serve(ctx context.Context, l net.Listener, b *broker.Broker, log *slog.Logger) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewCollector(b), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET "+path, promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: &failures{log: log}, ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxInFlight, CoalesceGather: true,
	}))
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, WriteTimeout: answerTime, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // what strangers send
	}
	server.SetKeepAlivesEnabled(false)
	if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		log.Warn("metrics are served to whoever reaches the address", "socket", a.String())
	} else {
		log.Info("metrics are served", "socket", l.Addr().String())
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(newBounded(l, maxConns)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are not served any more", "socket", l.Addr().String(), "err", err)
		}
	})
	<-ctx.Done()
	grace, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	if server.Shutdown(grace) != nil {
		server.Close()
	}
	serving.Wait()
}

// A failures logs what a scrape does not get. Who goes before it has the answer can cause any number of such lines.
type failures struct {
	log  *slog.Logger
	rate pace.Limiter
}

// Println logs a failure, as promhttp.Logger.
func (f *failures) Println(v ...any) {
	tell, untold := f.rate.Admit(time.Now())
	args := []any{"err", strings.TrimSpace(fmt.Sprintln(v...))}
	if untold > 0 {
		args = append(args, "more", untold)
	}
	if tell {
		f.log.Warn("a scrape of the metrics failed", args...)
	}
}
