// The command linearizable reads the history of a campaign, a line of JSON for each operation, and reports whether
// registers that behave one operation at a time could have given these answers.
//
//	linearizable HISTORY PICTURE
//
// An operation is {"client", "key", "write", "value", "called_ns", "returned_ns"}. "value" is what was written, or what
// was read. A write without an answer has no "returned_ns": it may have happened at any time since, or never. Exits with
// 1, and draws the history as a web page in PICTURE, if the answers are impossible, and with 3 if that could not be
// decided in five minutes.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Client     int    `json:"client"`
	Key        string `json:"key"`
	Write      bool   `json:"write"`
	Value      int64  `json:"value"`
	CalledNs   int64  `json:"called_ns"`
	ReturnedNs *int64 `json:"returned_ns"`
}

// A register of each key; 0 is a key that is not there.
func registers() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := map[string][]porcupine.Operation{}
			for _, one := range history {
				key := one.Input.(operation).Key
				byKey[key] = append(byKey[key], one)
			}
			parts := make([][]porcupine.Operation, 0, len(byKey))
			for _, part := range byKey {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return int64(0) },
		Step: func(state, input, output any) (bool, any) {
			done := input.(operation)
			if done.Write {
				return true, done.Value
			}
			return state.(int64) == output.(int64), state
		},
		DescribeOperation: func(input, output any) string {
			done := input.(operation)
			if done.Write {
				return fmt.Sprintf("%s = %d", done.Key, done.Value)
			}
			return fmt.Sprintf("%s is %d", done.Key, output.(int64))
		},
	}
}

func read(path string) ([]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var history []porcupine.Operation
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var done operation
		if err := json.Unmarshal(lines.Bytes(), &done); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		returned := int64(math.MaxInt64)
		if done.ReturnedNs != nil {
			returned = *done.ReturnedNs
		}
		history = append(history, porcupine.Operation{
			ClientId: done.Client, Input: done, Call: done.CalledNs, Output: done.Value, Return: returned,
		})
	}
	return history, lines.Err()
}

// tightened returns a history that has an order exactly if the given one has, and far fewer orders to try. A write
// without an answer whose value nobody read is left out: whoever orders the operations can leave it out, too. A write
// without an answer whose value no other write has happened before the first answer with this value.
func tightened(history []porcupine.Operation) []porcupine.Operation {
	type written struct {
		key   string
		value int64
	}
	of := func(one porcupine.Operation) written {
		done := one.Input.(operation)
		return written{done.Key, done.Value}
	}
	writes := map[written]int{}
	firstRead := map[written]int64{}
	for _, one := range history {
		if one.Input.(operation).Write {
			writes[of(one)]++
		} else if known, found := firstRead[of(one)]; !found || one.Return < known {
			firstRead[of(one)] = one.Return
		}
	}
	kept := make([]porcupine.Operation, 0, len(history))
	for _, one := range history {
		if one.Input.(operation).Write && one.Return == math.MaxInt64 {
			read, found := firstRead[of(one)]
			if !found {
				continue
			}
			// A value that was read before it was written is for the search to find.
			if writes[of(one)] == 1 && of(one).value != 0 && read >= one.Call {
				one.Return = read
			}
		}
		kept = append(kept, one)
	}
	return kept
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: linearizable HISTORY PICTURE")
		os.Exit(2)
	}
	history, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "linearizable:", err)
		os.Exit(2)
	}
	result, info := porcupine.CheckOperationsVerbose(registers(), tightened(history), 5*time.Minute)
	fmt.Printf("%d operations: %s\n", len(history), result)
	if result == porcupine.Ok {
		return
	}
	if result == porcupine.Unknown {
		os.Exit(3)
	}
	if err := porcupine.VisualizePath(registers(), info, os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "linearizable:", err)
	}
	os.Exit(1)
}
