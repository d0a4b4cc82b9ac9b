package place

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"larder.io/larder/scheduler/engines/kubernetes/internal/allocator"
)

var (
	first  = Key{Job: 7, Attempt: 1, Queue: "q-1"}
	second = Key{Job: 7, Attempt: 2, Queue: "q-1"}
	ready  = Nodes{"n1": NodeBack, "n2": NodeBack}
)

// gatedGang makes a Job "train" with its gated pods train-0, train-1 and so on, of 8 GPUs each.
func gatedGang(pods int) *Gang {
	id := GangID{"team", "train"}
	gang := &Gang{ID: id, Jobs: []*Job{{Namespace: "team", Name: "train", UID: "job", Gang: id, Pods: pods, Left: pods,
		Work: Work{GPUs: 8}}}}
	for i := range pods {
		gang.Pods = append(gang.Pods, gatedPod(fmt.Sprintf("train-%d", i)))
	}
	return gang
}

func gatedPod(name string) *Pod {
	return &Pod{Namespace: "team", Name: name, UID: types.UID(name), Gang: GangID{"team", "train"}, Work: Work{GPUs: 8},
		HasOwner: true, Owner: "job", Gated: true, Phase: corev1.PodPending, Index: -1, Rank: -1}
}

func twoNodes(key Key) *Attempt { return NewAttempt(key, []Slot{{"n1", 8}, {"n2", 8}}) }

// run places the pods of a gang, as the API server does after the steps, and lets them run.
func run(gang *Gang, attempt *Attempt) {
	for rank := range attempt.Plan {
		put(gang.Pods[rank], attempt, rank)
	}
}

func put(pod *Pod, attempt *Attempt, rank int) {
	pod.Gated, pod.Attempt, pod.Rank, pod.Plan = false, attempt.Key, rank, attempt.Plan
	pod.Node, pod.Phase = attempt.Plan[rank].Node, corev1.PodRunning
}

// told is Decide, after which the allocator knows the event.
func told(gang *Gang, attempt *Attempt, nodes Nodes) Decision {
	decision := Decide(gang, attempt, nodes)
	if decision.Event != nil {
		attempt.Told(*decision.Event)
	}
	return decision
}

func text(decision Decision) string {
	var words []string
	for _, step := range decision.Steps {
		switch step.Kind {
		case PlacePod:
			words = append(words, fmt.Sprintf("place %s %d", step.Pod.Name, step.Rank))
		case DeletePod:
			words = append(words, "delete "+step.Pod.Name)
		case SuspendJob:
			words = append(words, "suspend "+step.Job.Name)
		case ResumeJob:
			words = append(words, "resume "+step.Job.Name)
			if step.Size > 0 {
				words = append(words, fmt.Sprint(step.Size))
			}
		case ScaleJob:
			words = append(words, fmt.Sprintf("scale %s %d", step.Job.Name, step.Size))
		case ForgetSuspend:
			words = append(words, "forget "+step.Job.Name)
		case NoteAttempt:
			words = append(words, "note "+step.Job.Name)
		}
	}
	if event := decision.Event; event != nil {
		words = append(words, "! "+event.Kind)
		if event.ExitCode != nil {
			words = append(words, fmt.Sprint(*event.ExitCode))
		}
		if event.WasStopping {
			words = append(words, "stopping")
		}
	}
	return strings.Join(words, " ")
}

func expect(t *testing.T, decision Decision, want string) {
	t.Helper()
	if got := text(decision); got != want {
		t.Fatalf("the decision is %q, want %q", got, want)
	}
}

func TestGangIsPlacedAsAWhole(t *testing.T) {
	gang, attempt := gatedGang(2), twoNodes(first)
	all := gang.Pods
	gang.Pods = all[:1]
	expect(t, Decide(gang, attempt, ready), "")
	gang.Pods = all
	expect(t, Decide(gang, attempt, ready), "place train-0 0 place train-1 1")
}

func TestPodIsPlacedOnceThoughTheWatchIsLate(t *testing.T) {
	gang, attempt := gatedGang(2), twoNodes(first)
	attempt.Placed(Decide(gang, attempt, ready).Steps[0])
	expect(t, Decide(gang, attempt, ready), "place train-1 1")
}

func TestPodOfAnIndexedJobGetsTheRankOfItsIndex(t *testing.T) {
	gang, attempt := gatedGang(2), twoNodes(first)
	gang.Pods[0].Index, gang.Pods[1].Index = 1, 0
	expect(t, Decide(gang, attempt, ready), "place train-0 1 place train-1 0")
}

func TestPodsOfDifferentSizesGetRanksOfTheirSize(t *testing.T) {
	gang := gatedGang(2)
	gang.Pods[0].Work.GPUs = 2
	attempt := NewAttempt(first, []Slot{{"n1", 8}, {"n2", 2}})
	expect(t, Decide(gang, attempt, ready), "place train-0 1 place train-1 0")
}

func TestGangRunsOnceAllPodsDo(t *testing.T) {
	gang, attempt := gatedGang(2), twoNodes(first)
	run(gang, attempt)
	gang.Pods[1].Phase = corev1.PodPending
	expect(t, told(gang, attempt, ready), "")
	gang.Pods[1].Unschedulable = "Insufficient nvidia.com/gpu"
	expect(t, told(gang, attempt, ready), "! pending")
	expect(t, told(gang, attempt, ready), "")
	gang.Pods[1].Phase = corev1.PodRunning
	expect(t, told(gang, attempt, ready), "! started")
	expect(t, told(gang, attempt, ready), "")
}

func failWithoutCode(gang *Gang) {
	gang.Jobs[0].Failed = true
	for _, pod := range gang.Pods {
		pod.Phase = corev1.PodFailed
	}
}

func TestEndOfAGang(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Gang, *Attempt)
		want   string
	}{
		{"complete", func(g *Gang, _ *Attempt) { g.Jobs[0].Complete = true }, "! ended 0"},
		{"complete after a pod failed", func(g *Gang, _ *Attempt) {
			g.Jobs[0].Complete, g.Pods[0].ExitCode = true, 3
		}, "! ended 0"},
		{"failed", func(g *Gang, _ *Attempt) { g.Jobs[0].Failed, g.Pods[1].ExitCode = true, 3 }, "! ended 3"},
		{"failed, and the other pod was deleted for it", func(g *Gang, _ *Attempt) {
			failWithoutCode(g)
			g.Pods[0].Deleting, g.Pods[0].ExitCode, g.Pods[1].ExitCode = true, 143, 3
		}, "! ended 3"},
		{"failed because its pods were deleted", func(g *Gang, _ *Attempt) {
			failWithoutCode(g)
			for _, pod := range g.Pods {
				pod.Deleting, pod.ExitCode = true, 143
			}
		}, "! ended 143"},
		{"failed without a code", func(g *Gang, _ *Attempt) { failWithoutCode(g) }, "! ended 1"},
		{"failed with its pods gone", func(g *Gang, _ *Attempt) { g.Jobs[0].Failed, g.Pods = true, nil }, "! ended 1"},
		{"failed before its pods are seen to end", func(g *Gang, _ *Attempt) { g.Jobs[0].Failed = true }, ""},
		{"failed while it was stopped", func(g *Gang, a *Attempt) {
			failWithoutCode(g)
			a.Undo = &Undo{Stopped, ""}
		}, "! ended 1 stopping"},
		{"complete while it was stopped", func(g *Gang, a *Attempt) {
			g.Jobs[0].Complete, a.Undo = true, &Undo{Stopped, ""}
		}, "! ended 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gang, attempt := gatedGang(2), twoNodes(first)
			run(gang, attempt)
			told(gang, attempt, ready)
			c.change(gang, attempt)
			expect(t, told(gang, attempt, ready), c.want)
			expect(t, told(gang, attempt, ready), "")
		})
	}
}

func TestStoppedGangIsSuspendedAndResumed(t *testing.T) {
	gang, attempt := gatedGang(2), twoNodes(first)
	run(gang, attempt)
	told(gang, attempt, ready)
	attempt.Undo = &Undo{Stopped, "for others"}
	expect(t, told(gang, attempt, ready), "suspend train")
	gang.Jobs[0].Suspended, gang.Jobs[0].ByUs = true, &Suspension{first, Stopped, "for others"}
	expect(t, told(gang, attempt, ready), "")
	gang.Pods[0].Deleting = true
	expect(t, told(gang, attempt, ready), "")
	gang.Pods = nil
	expect(t, told(gang, attempt, ready), "! ended 0 stopping")

	next := twoNodes(second)
	expect(t, told(gang, next, ready), "resume train")
	gang.Jobs[0].Suspended, gang.Jobs[0].ByUs, gang.Jobs[0].Attempt = false, nil, second
	gang.Pods = []*Pod{gatedPod("train-2"), gatedPod("train-3")}
	expect(t, told(gang, next, ready), "place train-2 0 place train-3 1")
}

func TestStopOfAGangThatHasNotBegunChangesNothing(t *testing.T) {
	gang, attempt := gatedGang(2), twoNodes(first)
	attempt.Undo = &Undo{Stopped, ""}
	expect(t, told(gang, attempt, ready), "! ended 0 stopping")
}

func TestStopOfAResumedGangSuspendsItAgain(t *testing.T) {
	gang, attempt := gatedGang(0), twoNodes(second)
	gang.Jobs[0].Attempt = second
	attempt.Undo = &Undo{Stopped, ""}
	expect(t, told(gang, attempt, ready), "suspend train")
}

func TestGangThatCannotBeHadWholeIsRejected(t *testing.T) {
	for _, c := range []struct {
		name   string
		placed int
		nodes  Nodes
		want   string
		then   string
	}{
		{"node lost before the first patch", 0, Nodes{"n1": NodeBack, "n2": NodeLost}, "! rejected", ""},
		{"node gone between two patches", 1, Nodes{"n1": NodeBack}, "suspend train", "! rejected"},
		{"node cordoned between two patches", 1, Nodes{"n1": NodeBack, "n2": NodeDrained}, "suspend train", "! rejected"},
		{"node of a placed pod cordoned", 1, Nodes{"n1": NodeDrained, "n2": NodeBack}, "place train-1 1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			gang, attempt := gatedGang(2), twoNodes(first)
			for rank := range c.placed {
				put(gang.Pods[rank], attempt, rank)
			}
			expect(t, told(gang, attempt, c.nodes), c.want)
			if c.then != "" {
				gang.Jobs[0].Suspended, gang.Jobs[0].ByUs = true, &Suspension{first, Rejected, "node"}
				gang.Pods = nil
				expect(t, told(gang, attempt, c.nodes), c.then)
			}
		})
	}
}

func TestRunningGangOnALostNodeIsLostWithoutWaitingForItsPodsThere(t *testing.T) {
	gang, attempt := gatedGang(2), twoNodes(first)
	run(gang, attempt)
	told(gang, attempt, ready)
	nodes := Nodes{"n1": NodeBack, "n2": NodeLost}
	expect(t, told(gang, attempt, nodes), "suspend train")
	gang.Jobs[0].Suspended, gang.Jobs[0].ByUs = true, &Suspension{first, Lost, "node n2 is lost"}
	expect(t, told(gang, attempt, nodes), "")
	gang.Pods = gang.Pods[1:]
	expect(t, told(gang, attempt, nodes), "! lost")
}

func TestRunningGangOnADrainedNodeGoesOn(t *testing.T) {
	gang, attempt := gatedGang(2), twoNodes(first)
	run(gang, attempt)
	told(gang, attempt, ready)
	expect(t, told(gang, attempt, Nodes{"n1": NodeBack, "n2": NodeDrained}), "")
}

func TestGangIsEvictedIfSomebodyElseEndsIt(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Gang)
		want   string
	}{
		{"pod deleted", func(g *Gang) { g.Pods = g.Pods[:1] }, "suspend train"},
		{"pod being deleted", func(g *Gang) { g.Pods[1].Deleting = true }, "suspend train"},
		{"Job suspended", func(g *Gang) { g.Jobs[0].Suspended, g.Pods = true, nil }, "! evicted"},
		{"Job deleted", func(g *Gang) { g.Jobs = nil }, ""},
		{"Job and pods deleted", func(g *Gang) { g.Jobs, g.Pods = nil, nil }, "! evicted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gang, attempt := gatedGang(2), twoNodes(first)
			run(gang, attempt)
			told(gang, attempt, ready)
			c.change(gang)
			expect(t, told(gang, attempt, ready), c.want)
		})
	}
}

func TestPodThatFailedIsReplacedAtItsRank(t *testing.T) {
	gang, attempt := gatedGang(2), twoNodes(first)
	run(gang, attempt)
	told(gang, attempt, ready)
	gang.Pods[1].Phase = corev1.PodFailed
	gang.Pods = append(gang.Pods, gatedPod("train-2"))
	expect(t, told(gang, attempt, ready), "place train-2 1")
}

func TestLastCompletionsOfAJobNeedFewerPods(t *testing.T) {
	gang, attempt := gatedGang(1), twoNodes(second)
	gang.Jobs[0].Pods, gang.Jobs[0].Left = 2, 1
	expect(t, told(gang, attempt, ready), "place train-0 0")
	put(gang.Pods[0], attempt, 0)
	expect(t, told(gang, attempt, ready), "! started")
}

func TestPodsWithoutAJobAreDeletedAtTheEnd(t *testing.T) {
	gang, attempt := gatedGang(2), twoNodes(first)
	gang.Jobs = nil
	for _, pod := range gang.Pods {
		pod.HasOwner = false
	}
	run(gang, attempt)
	told(gang, attempt, ready)
	attempt.Undo = &Undo{Stopped, ""}
	expect(t, told(gang, attempt, ready), "delete train-0 delete train-1")
	gang.Pods = nil
	expect(t, told(gang, attempt, ready), "! ended 0 stopping")
}

func TestStrayPodsAreDeletedBeforeOthersArePlaced(t *testing.T) {
	gang := gatedGang(3)
	put(gang.Pods[2], twoNodes(first), 0)
	expect(t, Decide(gang, nil, ready), "delete train-2")
	expect(t, Decide(gang, twoNodes(second), ready), "delete train-2")
}

func TestRestoredAttemptGoesOn(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Gang, *Attempt)
		last   string
		want   string
	}{
		{"between two patches", func(g *Gang, a *Attempt) { put(g.Pods[0], a, 0) }, "pending", "place train-1 1"},
		{"running", run, "started", ""},
		{"being stopped", func(g *Gang, a *Attempt) {
			run(g, a)
			g.Jobs[0].Suspended, g.Jobs[0].ByUs = true, &Suspension{first, Stopped, "for others"}
		}, "pending", ""},
		{"rejected", func(g *Gang, a *Attempt) {
			put(g.Pods[0], a, 0)
			g.Pods = g.Pods[:1]
			g.Jobs[0].Suspended, g.Jobs[0].ByUs = true, &Suspension{first, Rejected, "node n2 is lost"}
		}, "pending", ""},
		{"resumed, without pods", func(g *Gang, a *Attempt) {
			g.Pods = nil
			g.Jobs[0].Attempt, g.Jobs[0].Plan = first, a.Plan
		}, "pending", ""},
		{"complete", func(g *Gang, a *Attempt) {
			run(g, a)
			g.Pods[0].Phase, g.Pods[1].Phase, g.Jobs[0].Complete = corev1.PodSucceeded, corev1.PodSucceeded, true
		}, "ended", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			gang := gatedGang(2)
			c.change(gang, twoNodes(first))
			restored := Restore(gang, first.Queue, first.Job)
			if restored == nil || restored.Key != first || len(restored.Plan) != 2 {
				t.Fatalf("restored %+v", restored)
			}
			event := restored.LastEvent(gang, ready)
			if event.Kind != c.last {
				t.Errorf("the last event is %q, want %q", event.Kind, c.last)
			}
			restored.Told(event)
			expect(t, Decide(gang, restored, ready), c.want)
		})
	}
}

func TestGangThatWasNeverPlacedHasNoAttempt(t *testing.T) {
	if restored := Restore(gatedGang(2), first.Queue, first.Job); restored != nil {
		t.Errorf("restored %+v", restored)
	}
}

func tasks(nodes ...int) []allocator.EngineTask {
	made := make([]allocator.EngineTask, len(nodes))
	for i, gpus := range nodes {
		made[i] = allocator.EngineTask{Node: fmt.Sprintf("n%d", i+1), GPUs: make([]int64, gpus)}
	}
	return made
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name  string
		tasks []allocator.EngineTask
		sizes []int64
		want  string
	}{
		{"one pod a node", tasks(8, 8), []int64{8, 8}, "n1=8,n2=8"},
		{"several pods a node", tasks(4, 2), []int64{2, 2, 2}, "n1=2,n1=2,n2=2"},
		{"the largest pod goes first", tasks(2, 8), []int64{2, 8}, "n1=2,n2=8"},
		{"a choice has to be taken back", tasks(7, 6), []int64{4, 3, 3, 3}, "n1=4,n1=3,n2=3,n2=3"},
		{"too many GPUs", tasks(8, 8), []int64{8}, ""},
		{"no pod fits", tasks(5, 3), []int64{4, 4}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, err := planOf(c.tasks, c.sizes)
			if (err != nil) != (c.want == "") || formatPlan(plan) != c.want {
				t.Errorf("the plan is %q, %v, want %q", formatPlan(plan), err, c.want)
			}
			if !slices.Equal(parsePlan(c.want), plan) {
				t.Errorf("parsePlan() = %v, want %v", parsePlan(c.want), plan)
			}
		})
	}
}

func TestRestoreTakesOnlyTheAttemptsOfTheJob(t *testing.T) {
	for _, other := range []Key{{Job: 9, Attempt: 1, Queue: first.Queue}, {Job: 7, Attempt: 1, Queue: "q-0"}} {
		gang := gatedGang(1)
		gang.Pods[0].Attempt, gang.Pods[0].Plan = other, []Slot{{"n1", 8}}
		gang.Jobs[0].ByUs = &Suspension{other, Stopped, ""}
		if restored := Restore(gang, first.Queue, first.Job); restored != nil {
			t.Errorf("restored %+v", restored)
		}
	}
}

func TestForgedAnnotationsNameNothing(t *testing.T) {
	for _, text := range []string{
		"", "7", "7.", "7.1", "7.1.", "0.1.q", "-1.1.q", "7.0.q", "7.-1.q", "-1.-1.q", "7.4294967296.q", "x.1.q",
		"7.1." + strings.Repeat("q", 65),
	} {
		if key := parseKey(text); key != (Key{}) {
			t.Errorf("parseKey(%q) = %v", text, key)
		}
	}
	if key := parseKey("7.4294967295.q-1"); key != (Key{7, 4294967295, "q-1"}) {
		t.Errorf("the last attempt is %v", key)
	}
	for _, text := range []string{"5.1.q bogus x", "5.1.q ended x", "5.1.q stopped", "0.1.q stopped x", "5.1.q"} {
		if suspension := parseSuspension(text); suspension != nil {
			t.Errorf("parseSuspension(%q) = %v", text, suspension)
		}
	}
	for _, reason := range []Reason{Stopped, Rejected, Evicted, Lost} {
		want := Suspension{first, reason, "for others"}
		if got := parseSuspension(want.String()); got == nil || *got != want {
			t.Errorf("parseSuspension(%q) = %v", want, got)
		}
	}
}

func TestGangOfWhichAPodHasSucceededGoesOnWithoutTheNodeOfThat(t *testing.T) {
	for _, state := range []NodeState{NodeDrained, NodeLost} {
		for _, isRestored := range []bool{false, true} {
			t.Run(fmt.Sprint(state, isRestored), func(t *testing.T) {
				gang, attempt := gatedGang(2), twoNodes(first)
				run(gang, attempt)
				told(gang, attempt, ready)
				gang.Pods[1].Phase, gang.Jobs[0].Left = corev1.PodSucceeded, 1
				nodes := Nodes{"n1": NodeBack, "n2": state}
				if isRestored {
					attempt = Restore(gang, first.Queue, first.Job)
					if event := attempt.LastEvent(gang, nodes); event.Kind != "started" {
						t.Errorf("the last event is %q", event.Kind)
					}
					attempt.Told(allocator.EngineEvent{Kind: "started"})
				}
				expect(t, told(gang, attempt, nodes), "")
			})
		}
	}
}

func TestRestoredGangOnADrainedNodeGoesOn(t *testing.T) {
	gang := gatedGang(2)
	run(gang, twoNodes(first))
	gang.Pods[0].Phase, gang.Jobs[0].Left = corev1.PodSucceeded, 1
	attempt := Restore(gang, first.Queue, first.Job)
	expect(t, told(gang, attempt, Nodes{"n1": NodeDrained, "n2": NodeDrained}), "! started")
}

func TestReplacementOfAFailedPodTakesAPlaceThatIsLeft(t *testing.T) {
	for _, c := range []struct {
		name  string
		state NodeState
		free  bool // Another pod has succeeded, on a good node.
		want  string
	}{
		{"its node is there", NodeBack, false, "place train-3 1"},
		{"its node is cordoned", NodeDrained, false, ""},
		{"its node is lost", NodeLost, false, "suspend train"},
		{"its node is lost, and another is free", NodeLost, true, "place train-3 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gang := gatedGang(3)
			attempt := NewAttempt(first, []Slot{{"n1", 8}, {"n2", 8}, {"n3", 8}})
			run(gang, attempt)
			nodes := Nodes{"n1": NodeBack, "n2": c.state, "n3": NodeBack}
			told(gang, attempt, Nodes{"n1": NodeBack, "n2": NodeBack, "n3": NodeBack})
			gang.Pods[1].Phase = corev1.PodFailed
			if c.free {
				gang.Pods[2].Phase, gang.Jobs[0].Left = corev1.PodSucceeded, 2
			}
			gang.Pods = append(gang.Pods, gatedPod("train-3"))
			expect(t, told(gang, attempt, nodes), c.want)
		})
	}
}

func TestNoteOfASuspensionGoesWithIt(t *testing.T) {
	gang := gatedGang(2)
	gang.Jobs[0].ByUs = &Suspension{first, Stopped, "for others"}
	expect(t, Decide(gang, nil, ready), "forget train")
	// The note belongs to the attempt that is being ended: the Job is suspended again.
	attempt := twoNodes(first)
	run(gang, attempt)
	expect(t, Decide(gang, attempt, ready), "suspend train")
}

func TestRestoredGangThatRanIsLostWithItsNode(t *testing.T) {
	gang := gatedGang(2)
	run(gang, twoNodes(first))
	attempt := Restore(gang, first.Queue, first.Job)
	expect(t, told(gang, attempt, Nodes{"n1": NodeBack}), "suspend train")
	if attempt.Undo.Reason != Lost {
		t.Errorf("the reason is %q", attempt.Undo.Reason)
	}
}

func TestGangThatBeginsDoesNotNeedTheNodeOfAPodThatHasEnded(t *testing.T) {
	gang := gatedGang(3)
	attempt := NewAttempt(first, []Slot{{"n1", 8}, {"n2", 8}, {"n3", 8}})
	run(gang, attempt)
	gang.Pods[0].Phase, gang.Jobs[0].Left = corev1.PodSucceeded, 2
	gang.Pods[2].Phase, gang.Pods[2].Node = corev1.PodPending, "n3"
	gang.Pods[1].Phase = corev1.PodPending
	expect(t, told(gang, attempt, Nodes{"n1": NodeDrained, "n2": NodeBack, "n3": NodeBack}), "")
}
