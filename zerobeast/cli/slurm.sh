# The batch script that `beast slurm` writes: this file, below the options of sbatch and what differs between runs.
#
# here                     folder from which the user's own environments are imported
# logs, services, waiting  folders in that of the run; in the last one policies wait for the evaluator
# evaluates                empty if the run has no evaluations
# learner_command          array of words that start the learner
# worker_command           function that starts a worker, with further flags as arguments
# evaluator_command        function that starts the evaluator
# shellcheck shell=bash disable=SC2154,SC2329 # what is set above, and functions that srun calls

cd "$here" || exit
unset "${!BEAST_@}" # the settings are in a file, over which these would win
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$head" --oneliner | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
port=$((20000 + 4 * (SLURM_JOB_ID % 3190))) # below 32768, from where on the kernel picks ports of clients
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1

crashes=$logs/crashes # a line for each failure of the job since its last time limit
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] && rm -f "$crashes"
rm -f "$services"/*.json # of an earlier job, which may have had more workers
trap 'again=yes; kill -TERM "$learner"' USR1 # the time is nearly up
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" --output="$logs/learner-0.log" --open-mode=append \
  "${learner_command[@]}" --learner.endpoint "tcp://*:$port" &
learner=$!
export LEARNER="tcp://$address:$port"
keep() {
  until "$@"; do
    [ $? = 2 ] && exit 2 # bad input stays bad
    sleep 5
  done
}
worker() { keep worker_command --index "$SLURM_PROCID" --learner.endpoint "$LEARNER"; }
evaluator() { # the job ends without the evaluations of a policy that kills it each time
  for _ in 1 2 3 4 5; do
    evaluator_command && return
    [ $? = 2 ] && exit 2
    sleep 5
  done
  exit 1
}
export -f keep worker worker_command evaluator evaluator_command
srun --overlap --output="$logs/worker-%t.log" --open-mode=append bash -c worker &
workers=$!
if [ "$evaluates" ]; then
  srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" --output="$logs/evaluator-0.log" --open-mode=append \
    bash -c evaluator &
  evaluator=$!
fi

wait -n "$learner" "$workers"
code=$?
if [ "$again" ] || [ $code = 0 ]; then # the learner saves now, or is at its end
  wait "$learner"
  code=$?
fi
kill -TERM "$learner" "$workers" 2>/dev/null
while [ $code = 0 ] && [ -z "$again" ] && kill -0 "$evaluator" && ls "$waiting"/*.pt; do
  sleep 1
done >/dev/null 2>&1 # until no policy waits for the evaluator, or there is none
[ "$evaluator" ] && kill -TERM "$evaluator" 2>/dev/null
wait
for _ in 1 2 3 4 5; do # a busy controller may not answer
  state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)
  [ "$state" ] && break
  sleep 2
done
if [ "$again" ]; then
  rm -f "$crashes"
  exec scontrol requeue "$SLURM_JOB_ID"
elif [[ $code != [02] && $state != @(COMPLETING|CANCELLED) ]] && echo "$code" >> "$crashes"; then
  [ "$(wc -l < "$crashes")" -le 5 ] && exec scontrol requeue "$SLURM_JOB_ID"
fi # COMPLETING: it is cancelled, or a node has failed and Slurm requeues it
exit "$code"
