package main

import (
	"math"
	"math/rand"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

const never = math.MaxInt64

func at(called, returned int64, write bool, value int64) porcupine.Operation {
	input := operation{Key: "a", Write: write, Value: value}
	return porcupine.Operation{ClientId: int(called), Input: input, Call: called, Output: value, Return: returned}
}

func TestTightenedHistoryHasAnOrderIfTheWholeOneHas(t *testing.T) {
	draw := rand.New(rand.NewSource(1))
	verdicts := map[porcupine.CheckResult]int{}
	for range 20000 {
		var history []porcupine.Operation
		for n := range int64(7) {
			called := draw.Int63n(12)
			returned := called + 1 + draw.Int63n(5)
			write := draw.Intn(2) == 0
			value := draw.Int63n(4)
			if write && draw.Intn(3) > 0 {
				value = n + 1
			}
			if write && draw.Intn(2) == 0 {
				returned = never
			}
			history = append(history, at(called, returned, write, value))
		}
		want := porcupine.CheckOperationsTimeout(registers(), history, time.Minute)
		if got := porcupine.CheckOperationsTimeout(registers(), tightened(history), time.Minute); got != want {
			t.Fatalf("the verdict of the tightened history is %v, of the whole one %v: %v", got, want, history)
		}
		verdicts[want]++
	}
	if verdicts[porcupine.Ok] < 1000 || verdicts[porcupine.Illegal] < 1000 {
		t.Errorf("the histories show too little: %v", verdicts)
	}
}

func TestManyWritesWithoutAnswersAreDecided(t *testing.T) {
	var history []porcupine.Operation
	for n := range int64(200) {
		history = append(history, at(10*n, never, true, n+1))
		if n%3 == 0 {
			history = append(history, at(10*n+2, 10*n+4, false, n+1))
		}
	}
	// Nobody has written this value.
	history = append(history, at(5000, 5001, false, 999))
	if got := porcupine.CheckOperationsTimeout(registers(), tightened(history), time.Minute); got != porcupine.Illegal {
		t.Errorf("the verdict is %v", got)
	}
}
