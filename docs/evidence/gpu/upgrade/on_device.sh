# Rehearse PyTorch 2.14.1 to 2.15.0 on a machine with GPUs and no package index, in sittings.
# Usage: on_device.sh prepare | drills | sit SECONDS | collect
# Variables: W a folder that stays between the calls; NEW and OLD folders whose env.sh puts a PyTorch on
# PYTHONPATH; OUT gets results; PLAN the plan, plan.toml (one GPU for two ranks) or two_cards.toml.
# .whl holds wheels of what keepstep needs, and the repository is here.
: ${W:?} ${NEW:?} ${OLD:?} ${OUT:?}
export XDG_CACHE_HOME=$W/c XDG_CONFIG_HOME=$W/k XDG_STATE_HOME=$W/s PYTHONUNBUFFERED=1
REPO=$W/repo R=$W/rehearsal
PLAN=$W/repo/docs/evidence/gpu/upgrade/${PLAN:-plan.toml}
OWN=$(command -v python3)
export PATH=$W/site/bin:$PATH
ks() { PYTHONPATH=$W/site:$REPO/src $OWN -c "from keepstep.cli.main import main; main()" "$@"; }
drill() { PYTHONPATH=$W/site:$REPO/src timeout -k 5 240 $OWN $REPO/docs/evidence/gpu/rehearse/drill.py "$@"; }
wrapper() { # file, folder with env.sh: ranks that share a GPU are each a host of its own to NCCL
  host=$([ $(basename $PLAN) = plan.toml ] && echo 'NCCL_HOSTID=rank-$RANK')
  printf '#!/bin/bash\ngiven=$PYTHONPATH\n. %s/env.sh\nexport PYTHONPATH=$PYTHONPATH:$given\nexport %s NCCL_SOCKET_IFNAME=lo\nexec %s "$@"\n' $2 "$host" $OWN >$1
  chmod +x $1
}
begin() { sleep $1; drill $PLAN $R $2 >$W/drill-$(echo $2 | tr / _).txt 2>&1; }
case $1 in
prepare)
  mkdir -p $W/site $REPO/docs/evidence/gpu
  cp -r src jobs $REPO/
  cp -r docs/evidence/gpu/rehearse docs/evidence/gpu/upgrade $REPO/docs/evidence/gpu/
  python3 -m pip install -q --no-index --no-deps --no-compile --target $W/site .whl/*.whl
  wrapper $W/new $NEW
  wrapper $W/old $OLD
  nvidia-smi --query-gpu=name,driver_version --format=csv; uname -r; nproc
  ks stack create new --python $W/new & ks stack create old --python $W/old
  wait
  ks rehearse $PLAN --out $R --minutes 0 | tail -3
  drill $PLAN $R >$W/names.txt
  cat $W/names.txt
  ;;
drills) # not timed, so side by side; the new stack's hang first
  for name in $(cat $W/names.txt); do
    case $name in
    hang/2.15/*) begin 0 $name & ;;
    hang/*) begin 20 $name & ;;
    rollback/*) begin 40 $name & ;;
    *) begin 60 $name & ;;
    esac
  done
  wait
  tail -n 2 $W/drill-*.txt
  ;;
sit)
  PYTHONPATH=$W/site:$REPO/src timeout -s TERM -k 20 $2 $OWN \
    -c "from keepstep.cli.main import main; main()" rehearse $PLAN --out $R \
    --minutes $($OWN -c "print(max(0.0, ($2 - 40) / 60))") >$W/report.txt 2>>$W/progress.txt
  echo "ended with $?"
  tail -25 $W/progress.txt
  head -80 $W/report.txt
  ;;
collect)
  find $R -size +3M -print -delete
  cp $W/k/keepstep/receipt.pub $W/
  tar czf $OUT/rehearsal.tgz --exclude="*.distcp" -C $W rehearsal report.txt progress.txt receipt.pub new old $(cd $W; ls drill-*.txt)
  ls -la $OUT
  ;;
esac
