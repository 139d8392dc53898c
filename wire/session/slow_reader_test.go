package session_test

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-dev/fairlead/wire/session"
)

// slowly reads 32 KiB at a time and rests after each, and answers with the checksum of all.
func slowly(_ context.Context, st *session.Stream) error {
	sum := crc32.NewIEEE()
	for b := make([]byte, 32<<10); ; {
		n, err := io.ReadFull(st, b)
		sum.Write(b[:n])
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			_, err = st.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
			return errors.Join(err, st.CloseWrite())
		} else if err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// heap returns how many bytes of the heap were in use when all garbage had been collected, also what pools had kept. What is allocated while that goes
// on counts, too.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return int64(live[0].Value.Uint64())
}

func TestAGreatStreamWithASlowReaderCostsNoMemoryAndDelaysNoCall(t *testing.T) {
	const mostP99 = 500 * time.Millisecond // the promise is 5 ms, of a machine that does nothing else
	size := 32 << 20
	if *long {
		size = 1 << 30
	}
	c, s := both(t, handler{methods: usual.methods, streams: streams{"slowly": slowly}})
	var all sync.WaitGroup
	done := make(chan struct{})
	sides := []*session.Session{c, s}
	took := []*latencies{newLatencies(), newLatencies()}
	block := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{}).Read(block)
	if err := c.Call(within(t, 10*time.Second), "echo", "", nil); err != nil {
		t.Fatal(err)
	}
	rested := newLatencies() // as late as this machine wakes anybody up
	before, grown := heap(), make([]int64, 0, 1<<12)
	for i, from := range sides {
		all.Go(func() {
			for !isClosed(done) {
				began := time.Now()
				if err := callSoon(from, "echo", "hi"); err != nil {
					t.Error(err)
					return
				}
				took[i].since(began)
			}
		})
	}
	all.Go(func() {
		for !isClosed(done) {
			grown = append(grown, heap()-before)
			time.Sleep(50 * time.Millisecond)
		}
	})
	all.Go(func() {
		for !isClosed(done) {
			began := time.Now()
			time.Sleep(time.Millisecond)
			rested.since(began)
		}
	})
	began := time.Now()
	sum, err := upload(t, c, block, size)
	d := time.Since(began)
	close(done)
	all.Wait()
	if want := repeatedSum(block, size); err != nil || sum != want {
		t.Errorf("checksum %#x of what was read, want %#x, %v", sum, want, err)
	}
	slices.Sort(grown)
	median, most := grown[len(grown)/2], grown[len(grown)-1]
	t.Logf("%s: %d MiB in %v, %d KiB more in use (median of %d samples, the highest %d); client: %v; service: %v; a rest of 1 ms beside them: %v; %s",
		channel(), size>>20, d.Round(time.Millisecond), median>>10, len(grown), most>>10, took[0], took[1], rested, machineLoad())
	if median > mostSlow { // what is higher has the garbage of many calls in it
		t.Errorf("%d KiB more are in use while it runs, both ends together", median>>10)
	}
	for i := range sides {
		if p99 := took[i].at(0.99); p99 > mostP99 {
			t.Errorf("p99 of the calls beside it: %v", p99)
		}
	}
}

// upload writes size bytes of block, again and again, and returns the checksum that the reader answers with.
func upload(t *testing.T, from *session.Session, block []byte, size int) (uint32, error) {
	st := open(t, from, "slowly")
	for written := 0; written < size; written += len(block) {
		if _, err := st.Write(block); err != nil {
			return 0, err
		}
	}
	if err := st.CloseWrite(); err != nil {
		return 0, err
	}
	answer, err := io.ReadAll(st)
	if err != nil || len(answer) != 4 {
		return 0, errors.Join(err, io.ErrUnexpectedEOF)
	}
	return binary.BigEndian.Uint32(answer), nil
}

func repeatedSum(block []byte, size int) uint32 {
	sum := crc32.NewIEEE()
	for written := 0; written < size; written += len(block) {
		sum.Write(block)
	}
	return sum.Sum32()
}

// callSoon makes a call that has 20 s. Many of them leave nothing with the test.
func callSoon(from *session.Session, method string, value any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return from.Call(ctx, method, value, nil)
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
